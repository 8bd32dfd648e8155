"""Rows with document starts, as they come from a server, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from client.device.numpy_batch import HostPart
from client.device.rich_batch import RichBatch
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.wire.row_block import Plane, RowBlock


def rows_with_documents(
    tokens: npt.ArrayLike, starts: Sequence[Sequence[int]], split: int = 0
) -> list[RowBlock]:
    """Rows in two frames, or in one if split is 0.

    tokens: [B, T + 1].  starts: for each row the offsets at which documents begin.
    """
    lengths = np.array([4 * len(row) for row in starts], np.uint32)
    content = np.array([start for row in starts for start in row], "<u4").view(np.uint8)
    plane = Plane(DOCUMENT_STARTS, lengths, content)
    block = RowBlock(np.asarray(tokens).astype("<u2"), (plane,))
    return [block[:split], block[split:]] if split else [block]


def batch_with_documents(tokens: npt.NDArray[Any], starts: Sequence[Sequence[int]]) -> RichBatch:
    """A batch, made of such rows as they come from a server."""
    rows = torch.from_numpy(tokens.astype(np.int64))
    return RichBatch(
        rows[:, :-1],
        rows[:, 1:],
        HostPart.of(rows_with_documents(tokens, starts)),
        samples=lambda: np.arange(len(tokens)),
        sources=lambda: np.zeros(len(tokens), np.int16),
        state_before=dict,
        state_after=dict,
    )
