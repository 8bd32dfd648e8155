"""Rows in order, in the blocks in which they came, for one consumer."""

from __future__ import annotations

from collections import deque

from tokenfeed.wire.row_block import RowBlock


class QueuedRows:
    """A queue of blocks, read by rows. One thread may add blocks while another one consumes rows:
    each value is changed by one of them, and read by the other without a lock.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._queue: deque[RowBlock] = deque()
        self._first_row = 0  # of the first block in the queue: its first row that is not consumed
        self._received_row = 0
        self._consumed_row = 0

    @property
    def queued_rows(self) -> int:
        """Rows that have been added and not consumed, as any thread sees it."""
        consumed_row = self._consumed_row  # first: it never exceeds the other
        return self._received_row - consumed_row

    def ready(self, row_count: int) -> bool:
        """Return whether `peek` would return this many rows at once."""
        return self._received_row - self._consumed_row >= row_count

    def consume(self, row_count: int) -> None:
        """Remove rows that `peek` has returned, which makes room for others."""
        first = self._first_row + row_count
        while self._queue and first >= (size := len(self._queue[0].tokens)):
            self._queue.popleft()
            first -= size
        self._first_row = first
        self._consumed_row += row_count

    def _add(self, rows: RowBlock) -> None:
        """Add the next rows."""
        self._queue.append(rows)
        self._received_row += len(rows)

    def _parts(self, row_count: int) -> list[RowBlock]:
        """Return the next rows, which are ready, in the parts in which they were added."""
        first = self._first_row
        block = self._queue[0]
        left = len(block.tokens) - first
        if left >= row_count:
            return [block[first : first + row_count]]
        parts = [block[first:]]
        row_count -= left
        while row_count:
            # By index: another thread may append meanwhile, which would break an iterator.
            parts.append(self._queue[len(parts)][:row_count])
            row_count -= len(parts[-1])
        return parts
