"""Where the rows of a feed come from: the interface of servers and of local files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.stream.stage import Redactions
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import RowBlock

from ..device.numpy_batch import HostPart, Note
from ..device.row_source import RowSource
from ..runtime.counters import Counters
from ..stream.usable import row_documents_max


class Datasets(Protocol):
    """The datasets of the sources of a stream, which provide its rows."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def forked(self) -> bool:
        """Whether this is a fork's copy of datasets that were in use."""

    def require_own_process(self) -> None:
        """Raise InvalidRequest in a fork's copy of datasets that were in use."""

    def await_described(self) -> tuple[pb.Dataset, ...]:
        """Return the description of each source; waits for them.  Raises: TokenfeedError."""

    def require_redactions(self, redactions: Redactions) -> None:
        """Raise StreamMismatch unless the files, or at least one server, have all lists of some
        redactions. Servers that lack a list are logged. Waits and raises like `await_described`.
        """

    def plane_fingerprints(self) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        """Return for each source the kind and the fingerprint of each plane (planes.py) of it that
        the feed wants. Waits and raises like `await_described`.
        """

    @property
    def reads_documents(self) -> bool:
        """Whether `read_documents` was called."""

    def read_documents(self) -> None:
        """Read document starts too from now on, where all datasets know them; does no I/O."""

    def rows_of(self, order: str, context_length: int | None = None, *, place: int = 0) -> int:
        """Return how many rows a dataset has in an order; per epoch if the order has epochs. Waits
        like `await_described`.

        order: its name.  context_length: of the rows; None is that of the stream.  place: index of
        the source in the stream.
        Raises: NotFound if there is no such order; TokenfeedError.
        """

    def open_rows(self, request: Request, *, prefetch_bytes: int, counters: Counters) -> RowSource:
        """Return the rows of a request. Nothing is received before `start` of the result.

        request: over a known stream.  prefetch_bytes: limit of the host memory for prefetched rows.
        counters: updated as rows arrive.
        """

    def end_with(self, owner: object) -> None:
        """Close the datasets when an object is garbage-collected."""

    def close(self) -> None:
        """Close every RowSource that `open_rows` returned, and the connections or files behind
        them: who waits for rows gets None. May be called twice, from any thread.
        """


def note_of(datasets: Datasets, stream: Stream) -> Note:
    """Return the function that makes the HostPart of each batch of a stream from its rows.

    datasets: of the sources of the stream. The function is called when rows have arrived.
    """

    @cache
    def limits() -> tuple[bool, int | None]:
        described = datasets.await_described()  # rows are there, so this does not wait
        planes = datasets.plane_fingerprints()
        knows_documents = all(DOCUMENT_STARTS in dict(own) for own in planes)
        return knows_documents, row_documents_max(stream, described)

    def note(parts: Sequence[RowBlock]) -> HostPart:
        knows_documents, documents_max = limits()
        return HostPart.of(parts, knows_documents=knows_documents, row_documents_max=documents_max)

    return note
