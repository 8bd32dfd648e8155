"""The interface of a source of rows: remote servers or local files."""

from __future__ import annotations

from typing import Protocol

from tokenfeed.wire.row_block import RowBlock


class RowSource(Protocol):
    """The rows of a stream in order, prefetched; for one consumer thread."""

    @property
    def queued_rows(self) -> int:
        """Rows that have arrived and were not consumed, as any thread sees it."""

    @property
    def capacity_rows(self) -> int:
        """How many rows may be prefetched; 0 without a thread."""

    def start(self, owner: object | None = None) -> None:
        """Start to receive, until closed or until owner is garbage-collected.  Raises: RuntimeError
        if no more threads can start.
        """

    def ready(self, row_count: int) -> bool:
        """Return whether `peek` would return this many rows at once."""

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """Return the next rows, in the parts in which they arrived; None at the end. Waits.

        The parts are read-only and have row_count rows in all, at most a batch. The next `peek`
        returns the same rows until `consume`.
        Raises: the error that ended the stream, once too few rows are left for a batch.
        """

    def consume(self, row_count: int) -> None:
        """Remove rows that `peek` has returned, which makes room for others."""

    def close(self) -> None:
        """Stop receiving and end the thread. May be called twice, from any thread."""
