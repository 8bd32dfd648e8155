"""The interface of the datasets of a feed, on remote servers or in local files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.stream.redactions import Redactions
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import StreamRequest
from tokenfeed.wire.row_block import RowBlock

from ...device.numpy_batch import HostPart, Note
from ...device.row_source import RowSource
from ...runtime.counters import Counters
from ...stream.usable import row_documents_max


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

    def require_redactions(self, redactions: Redactions) -> None:
        """Raise StreamMismatch unless the datasets have the lists of redactions; of several servers
        those without them are logged. Waits like `await_described`, and raises the same.
        """

    def plane_fingerprints(self) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        """Return kind and fingerprint of the planes of each source that the feed reads; waits like
        `await_described`.
        """

    @property
    def reads_documents(self) -> bool:
        """Whether `read_documents` was called."""

    def read_documents(self) -> None:
        """Read document starts too from now on, where all datasets know them; does no I/O."""

    def rows_of(self, order: str, context_length: int | None = None, *, place: int = 0) -> int:
        """Return the number of rows of an order of a dataset; per epoch if it has epochs.

        context_length: if it differs from that of the streams.  place: of the dataset among the
        sources.  Raises: TokenfeedError.
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


def note_of(dataset: StreamedDataset, spec: StreamSpec) -> Note:
    """Return what notes the host part of batches of a stream."""

    @cache
    def limits() -> tuple[bool, int | None]:
        described = dataset.await_described()  # rows are there, so this does not wait
        planes = dataset.plane_fingerprints()
        knows_documents = all(DOCUMENT_STARTS in dict(own) for own in planes)
        return knows_documents, row_documents_max(spec, described)

    def note(parts: Sequence[RowBlock]) -> HostPart:
        knows_documents, documents_max = limits()
        return HostPart.of(parts, knows_documents=knows_documents, row_documents_max=documents_max)

    return note
