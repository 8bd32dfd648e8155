"""Rows with document starts, as they come from a server, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.support.targets import Count, counts_plane, starts_plane
from tokenfeed.client.device.numpy_batch import HostPart
from tokenfeed.client.device.rich_batch import RichBatch
from tokenfeed.wire.row_block import RowBlock


def rows_with_documents(
    tokens: npt.ArrayLike,
    starts: Sequence[Sequence[int]],
    split: int = 0,
    counts: Sequence[Count] | None = None,
) -> list[RowBlock]:
    """Rows in two frames, or in one if split is 0.

    tokens: [B, T + 1].  starts: for each row the offsets at which documents begin.  counts: tokens
    of each row that are no padding; None: of a stream of windows.
    """
    planes = [starts_plane(starts)]
    if counts is not None:
        planes.append(counts_plane(counts))
    block = RowBlock(np.asarray(tokens).astype("<u2"), tuple(planes))
    return [block[:split], block[split:]] if split else [block]


def batch_with_documents(tokens: npt.NDArray[Any], starts: Sequence[Sequence[int]]) -> RichBatch:
    """A batch, made of such rows as they come from a server."""
    rows = torch.from_numpy(tokens.astype(np.int64))
    return RichBatch(
        rows[:, :-1].contiguous(),
        rows[:, 1:].contiguous(),
        HostPart.of(rows_with_documents(tokens, starts)),
        samples=lambda: np.arange(len(tokens)),
        sources=lambda: np.zeros(len(tokens), np.int16),
        state_before=dict,
        state_after=dict,
    )
