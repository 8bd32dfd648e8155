"""Plane 53: the runs of redacted tokens of each row. docs/protocol.md, Planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..stream.planes import REDACTED
from .row_block import RUN_BYTES, Plane, RowBlock, Run

Numbers = npt.NDArray[np.int64]


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
    lengths = RUN_BYTES * np.bincount(row, minlength=row_count)
    return Plane(REDACTED, lengths.astype(np.uint32), runs.reshape(-1).view(np.uint8))


def runs_of(plane: Plane) -> Sequence[Run]:
    """Return the runs of rows: row, first token and end.

    As a list: a run covers many tokens, and few rows have one.
    """
    if plane.runs is not None or not plane.content.size:
        return plane.runs or ()
    numbers = plane.content.view("<u4").tolist()
    rows = plane.row_lengths.nonzero()[0]
    if rows.size < len(numbers) // 2:  # some have several
        rows = rows.repeat(plane.row_lengths[rows] // RUN_BYTES)
    return list(zip(rows.tolist(), numbers[::2], numbers[1::2], strict=True))


def with_runs(rows: RowBlock) -> RowBlock:
    """Return rows with a valid plane 53 that was read already, if they have one: a batch of them
    then needs no array of it. Small arrays take 10 us each between large copies, which leave them
    no cache: 2 shared cores, 2026-11.
    """
    if all(plane.kind != REDACTED for plane in rows.planes):
        return rows
    planes = [
        replace(plane, runs=runs_of(plane)) if plane.kind == REDACTED else plane
        for plane in rows.planes
    ]
    return RowBlock(rows.tokens, tuple(planes))


def are_valid(plane: Plane, row_tokens: int) -> bool:
    """Return whether each row of a received plane has runs of its tokens, ascending, that do not
    touch.
    """
    if not plane.content.size:
        return True
    if (plane.row_lengths % RUN_BYTES).any():
        return False
    last_row, last_end = -1, 0
    for row, first, end in runs_of(plane):
        if first >= end or end > row_tokens or (row == last_row and first <= last_end):
            return False
        last_row, last_end = row, end
    return True
