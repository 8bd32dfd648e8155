"""The windows of a stream's next rows, planned thousands at a time, as far ahead as is looked."""

from __future__ import annotations

import numpy as np

from tokenfeed.plan import PLAN_ROWS, Plan, Windows
from tokenfeed.position import Position


class PlannedRows:
    """Windows of the rows of one stream, asked for in order.

    Planning a few thousand rows costs little more than planning one, and whoever reads ahead wants
    to look beyond the end of what is planned; so some rows are always kept, and more are planned
    before they run out.
    """

    def __init__(self, plan: Plan, position: Position, first_row: int, end_row: int) -> None:
        """Begin at a row of the stream.  end_row: where it ends."""
        self._plan = plan
        self._position = position
        self._end_row = end_row
        self._first_row = self._planned_row = first_row
        self._windows = Windows(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def forget(self, end_row: int) -> None:
        """Let go of the rows before end_row."""
        self._windows = self._windows[end_row - self._first_row :]
        self._first_row = end_row

    def between(self, first_row: int, end_row: int) -> Windows:
        """Return the windows of rows, those that exist.  first_row: not forgotten yet."""
        missing = min(end_row, self._end_row) - self._planned_row
        if missing > 0:
            count = min(max(PLAN_ROWS, missing), self._end_row - self._planned_row)
            more = self._plan.windows(self._position.samples(self._planned_row, count))
            self._windows = Windows(
                np.concatenate([self._windows.shard, more.shard]),
                np.concatenate([self._windows.token_offset, more.token_offset]),
            )
            self._planned_row += count
        return self._windows[first_row - self._first_row : end_row - self._first_row]
