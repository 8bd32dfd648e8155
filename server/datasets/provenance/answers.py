"""The answers of the service Provenance, of a server or of this machine's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import REDACTED
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as feed_pb
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.request import (
    AnyRequest,
    Expected,
    Request,
    from_message,
    parse_stream,
    require_understood,
)

from ...storage.store import RowStore
from ..dataset import Dataset
from ..redactions.redacted_rows import RedactedRows, Redactor
from .coverage import coverage
from .documents import DatasetDocuments
from .find import find
from .locate import locate
from .sources import Marks, RowMarks, Sources, unmarked

Check = Callable[[AnyRequest, Expected], tuple[Sequence[Dataset], RowStore, bytes]]
"""Returns the dataset of each source, the store of their rows, and the identity of the stream.
Raises: what GetBatch refuses the request with."""


class Query(NamedTuple):
    """A request that was checked."""

    request: AnyRequest
    sources: Sources
    rows: RowStore


class Answers:
    """Answers of some datasets. May be used from several threads at once."""

    def __init__(self, check: Check, redactor: Redactor) -> None:
        """redactor: that of the rows."""
        self._check = check
        self._redactor = redactor
        self._documents: dict[Dataset, DatasetDocuments] = {}

    def locate(
        self, message: pb.LocateRequest, on_query: Callable[[Query], None] = lambda query: None
    ) -> pb.LocateResponse:
        """Answer Locate.  on_query: is called with the query, once it is checked.

        Raises: TokenfeedError.
        """
        require_understood(message, without="rows")
        query = self._query(*from_message(_with_own_planes(message.rows)))
        on_query(query)
        return locate(query.sources, query.request, self._marks(query))

    def find(
        self, message: pb.FindRequest, on_query: Callable[[Query], None] = lambda query: None
    ) -> pb.FindResponse:
        """Answer Find; as `locate`."""
        require_understood(message, without="stream")
        stream, expected = _stream_of(message)
        first_sample = message.first_sample
        request = Request(stream, Position(first_sample, 1), end_sample=message.end_sample)
        _, end_sample = stream.at(first_sample)
        if end_sample is not None:
            problem = f"{end_sample} is above first_sample, {first_sample}"
            raise InvalidRequest("redactions.first_sample", problem)
        query = self._query(request, expected)
        on_query(query)
        return find(query.sources, message, self._marks(query))

    def coverage(
        self, message: pb.CoverageRequest, on_query: Callable[[Query], None] = lambda query: None
    ) -> pb.CoverageResponse:
        """Answer Coverage; as `locate`."""
        require_understood(message, without="stream")
        stream, expected = _stream_of(message)
        _require_one_dataset(stream)
        query = self._query(Request(stream, Position(0, 1), end_sample=0), expected)
        on_query(query)
        return coverage(query.sources, message)

    def _marks(self, query: Query) -> Marks:
        """Return what finds the redacted and the deleted tokens of rows.  Raises: StreamMismatch if
        a dataset lacks a list; LimitExceeded.
        """
        found = self._redactor.wrap(query.rows, query.sources.datasets, query.request.stream)
        return partial(_marked, found) if isinstance(found, RedactedRows) else unmarked

    def _query(self, request: AnyRequest, expected: Expected) -> Query:
        datasets, rows, _ = self._check(request, expected)
        documents = [self._documents_of(dataset) for dataset in datasets]
        return Query(request, Sources(request.stream, datasets, documents), rows)

    def _documents_of(self, dataset: Dataset) -> DatasetDocuments:
        # Made once: it looks at the index of each file.
        if (known := self._documents.get(dataset)) is None:
            known = self._documents.setdefault(dataset, DatasetDocuments(dataset))
        return known


def _with_own_planes(message: feed_pb.GetBatchRequest) -> feed_pb.GetBatchRequest:
    """Return a request without its planes, which have no effect here, but with the one that
    redactions need.
    """
    found = feed_pb.GetBatchRequest()
    found.CopyFrom(message)
    found.ClearField("planes")
    if found.stream.redactions:
        found.planes.add(kind=REDACTED)
    return found


def _stream_of(message: pb.FindRequest | pb.CoverageRequest) -> tuple[Stream, Expected]:
    """Return the stream of a request, and what is expected of it.  Raises: RequestError."""
    stream, digests = parse_stream(message.stream)
    return stream, Expected(message.expected_identity, digests)


def _require_one_dataset(stream: Stream) -> None:
    """Raise InvalidRequest unless the samples of a stream are those of its only source."""
    stage = stream.stage
    shares = [(weight, base) for _, weight, base in stage.shares]
    if (stage.index, stage.first_sample, shares) != (0, 0, [(1, 0)]):
        problem = "is not over one dataset from sample 0 on; ask for each source in its own order"
        raise InvalidRequest("stream", problem)
    if stream.redactions:
        raise InvalidRequest("redactions", "have no effect on what samples hold; omit them")


def _marked(rows: RedactedRows, spans: Spans) -> RowMarks:
    """Return what is redacted in each row, from plane 53, and what is deleted."""
    redacted: list[list[tuple[int, int]]] = [[] for _ in range(len(spans))]
    for row, first, end in redacted_runs.runs_of(rows.marks(spans)):
        redacted[row].append((first, end))
    return RowMarks(redacted, rows.deleted(spans))
