"""Rows in order, whoever makes them: servers far away, or files here."""

from __future__ import annotations

from typing import Protocol

from tokenfeed.wire.row_block import RowBlock


class RowSource(Protocol):
    """The rows of a stream in order, received ahead; for one consumer's thread."""

    def start(self, owner: object | None = None) -> None:
        """Begin to receive, until closed, or until owner is let go of.  Raises: RuntimeError if
        there can be no more threads.
        """

    def ready(self, row_count: int) -> bool:
        """Say whether `peek` would return at once with so many rows."""

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """Return the next rows, in as many parts as they came in; None at the end. Waits.

        The parts are read-only; row_count rows in all, at most a batch. They stay the next ones
        until `consume`.
        Raises: the error that ended the stream, once too few rows are left for a batch.
        """

    def consume(self, row_count: int) -> None:
        """Leave behind rows that `peek` has returned, which makes room for others."""

    def close(self) -> None:
        """Stop, and end its thread. May be called twice, from any thread."""
