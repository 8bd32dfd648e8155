"""Plane 53: the runs of redacted tokens of each row. docs/protocol.md, Planes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..stream.planes import REDACTED
from .row_block import Plane

Numbers = npt.NDArray[np.int64]

_RUN_BYTES = 8
"""The first token and the end, 4 bytes each."""


def plane_of(row_count: int, row: Numbers, first: Numbers, end: Numbers) -> Plane:
    """Return the plane of rows with these redacted tokens.

    row, first, end: int64[n] each; tokens [first, end) of a row, ascending, without overlap. Those
    that touch become one run.
    """
    touch = (row[1:] == row[:-1]) & (first[1:] == end[:-1])
    if touch.any():
        begins, lasts = np.append(True, ~touch), np.append(~touch, True)
        row, first, end = row[begins], first[begins], end[lasts]
    runs = np.empty((row.size, 2), dtype="<u4")
    runs[:, 0], runs[:, 1] = first, end
    lengths = _RUN_BYTES * np.bincount(row, minlength=row_count)
    return Plane(REDACTED, lengths.astype(np.uint32), runs.reshape(-1).view(np.uint8))


def runs_of(plane: Plane) -> list[tuple[int, int, int]]:
    """Return the runs of rows: row, first token and end.

    As a list: a run covers many tokens, and few rows have one.
    """
    if not plane.content.size:
        return []
    numbers = plane.content.view("<u4").tolist()
    rows = plane.row_lengths.nonzero()[0]
    if rows.size < len(numbers) // 2:  # some have several
        rows = rows.repeat(plane.row_lengths[rows] // _RUN_BYTES)
    return list(zip(rows.tolist(), numbers[::2], numbers[1::2], strict=True))


def are_valid(plane: Plane, row_tokens: int) -> bool:
    """Return whether each row of a received plane has runs of its tokens, ascending, that do not
    touch.
    """
    if not plane.content.size:
        return True
    if (plane.row_lengths % _RUN_BYTES).any():
        return False
    last_row, last_end = -1, 0
    for row, first, end in runs_of(plane):
        if first >= end or end > row_tokens or (row == last_row and first <= last_end):
            return False
        last_row, last_end = row, end
    return True
