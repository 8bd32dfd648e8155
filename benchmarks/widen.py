"""Rows as they are sent -> (x, y), for contenders without their own conversion."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.rows import Rows


def widen(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contiguous int64 tensors x and y of shape [n, T], from uint16 [n, T + 1]."""
    x = torch.empty((len(rows), rows.shape[1] - 1), dtype=torch.int64)
    y = torch.empty_like(x)
    np.copyto(x.numpy(), rows[:, :-1])
    np.copyto(y.numpy(), rows[:, 1:])
    return x, y
