"""What a feed reads from: a dataset on servers far away, or in files here."""

from __future__ import annotations

from typing import Protocol

from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import StreamRequest

from ..device.row_source import RowSource
from ..stats import Counters


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
