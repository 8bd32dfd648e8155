"""The interface of the datasets that a feed reads: on remote servers, or in local files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import StreamRequest

from ..device.row_source import RowSource
from ..stats import Counters


class StreamedDataset(Protocol):
    """The datasets of a feed, one or those of a mixture, which provide streams of rows."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def forked(self) -> bool:
        """Whether this is a fork's copy of a dataset that was in use."""

    def require_own_process(self) -> None:
        """Raise InvalidRequest in a fork's copy of a dataset that was in use."""

    def await_described(self) -> tuple[pb.Dataset, ...]:
        """Return the description of each source; waits for them.  Raises: TokenfeedError."""

    def rows_of(self, order: str, context_length: int | None = None) -> int:
        """Return the number of rows of an order of the only dataset; per epoch if it has epochs.

        context_length: if it differs from that of the streams.  Raises: TokenfeedError.
        """

    def open_rows(
        self, request: StreamRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowSource:
        """Return the rows of a stream, which does not receive before `start`.

        prefetch_bytes: memory for prefetched rows.  counters: are updated by the stream.
        """

    def end_with(self, owner: object) -> None:
        """Close the dataset when an object is garbage-collected."""

    def close(self) -> None:
        """End all streams of it. May be called twice, from any thread."""


def fingerprints_of(described: Sequence[pb.Dataset]) -> list[bytes]:
    """Return the fingerprints of descriptions."""
    return [dataset.fingerprint for dataset in described]
