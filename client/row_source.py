"""What a feed reads from, whoever makes the rows: servers far away, or files here."""

from __future__ import annotations

from typing import Protocol

from tokenfeed.request import StreamRequest
from tokenfeed.row_block import RowBlock
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .progress import Counters


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
        until `advance`.
        Raises: the error that ended the stream, once too few rows are left for a batch.
        """

    def advance(self, row_count: int) -> None:
        """Leave behind rows that `peek` has returned, which makes room for others."""

    def close(self) -> None:
        """Stop, and end its thread. May be called twice, from any thread."""


class StreamedDataset(Protocol):
    """A dataset that streams of rows are read from."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def forked(self) -> bool:
        """Whether this is the copy that a fork made of one in use."""

    def require_own_process(self) -> None:
        """Raise InvalidRequest in the copy that a fork made of one in use."""

    def await_described(self) -> pb.Dataset:
        """Return what is known of it, waiting for that.  Raises: TokenfeedError."""

    def rows_of(self, order: str, context_length: int | None = None) -> int:
        """Return the rows of an order, those of an epoch where it has them.

        context_length: another one than the streams have.  Raises: TokenfeedError.
        """

    def open_rows(
        self, request: StreamRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowSource:
        """Return the rows of a stream, which has not begun to receive.

        prefetch_bytes: room for what is received ahead.  counters: where it counts.
        """

    def end_with(self, owner: object) -> None:
        """Close it when an object is let go of."""

    def close(self) -> None:
        """End all that reads from it. May be called twice, from any thread."""
