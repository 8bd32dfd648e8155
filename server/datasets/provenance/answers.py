"""The answers of the service Provenance, of a server or of this machine's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import REDACTED
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as feed_pb
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.request import Expected, StreamRequest, from_message, require_understood

from ...storage.store import RowStore
from ..dataset import Dataset
from ..redactions.redacted_rows import RedactedRows, Redactor
from .coverage import coverage
from .documents import DatasetDocuments
from .find import find
from .locate import RowSpans, locate
from .sources import Sources

Check = Callable[[StreamRequest, Expected], tuple[Sequence[Dataset], RowStore]]
"""Checks a request of GetBatch, but for its planes.  Returns: the dataset of each source, and what
rows of these are gathered from.  Raises: what GetBatch refuses it with."""


class Asked(NamedTuple):
    """A request that was checked."""

    request: StreamRequest
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
        self, message: pb.LocateRequest, on_asked: Callable[[Asked], None] = lambda asked: None
    ) -> pb.LocateResponse:
        """Answer Locate.  on_asked: takes what is asked for, once it is checked.

        Raises: TokenfeedError.
        """
        require_understood(message, without="rows")
        rows = _without_planes(message.rows)
        if rows.redactions:
            rows.planes.add(kind=REDACTED)
        asked = self._asked(rows)
        on_asked(asked)
        spec = asked.request.spec
        if not spec.redactions:
            return locate(asked.sources, asked.request)
        found = self._redactor.wrap(asked.rows, asked.sources.datasets, spec)
        assert isinstance(found, RedactedRows)
        return locate(asked.sources, asked.request, partial(_redacted, found))

    def find(
        self, message: pb.FindRequest, on_asked: Callable[[Asked], None] = lambda asked: None
    ) -> pb.FindResponse:
        """Answer Find; as `locate`."""
        require_understood(message, without="stream")
        if not message.stream.HasField("end_sample"):
            raise InvalidRequest("end_sample", "is missing: the end of the samples to examine")
        asked = self._asked(_without_rows(message.stream))
        on_asked(asked)
        return find(asked.sources, asked.request, message)

    def coverage(
        self, message: pb.CoverageRequest, on_asked: Callable[[Asked], None] = lambda asked: None
    ) -> pb.CoverageResponse:
        """Answer Coverage; as `locate`."""
        require_understood(message, without="stream")
        asked = self._asked(_without_rows(message.stream))
        on_asked(asked)
        return coverage(asked.sources, message)

    def _asked(self, message: feed_pb.GetBatchRequest) -> Asked:
        request, expected = from_message(message)
        datasets, rows = self._check(request, expected)
        documents = [
            self._documents.setdefault(dataset, DatasetDocuments(dataset)) for dataset in datasets
        ]
        return Asked(request, Sources(request.spec, datasets, documents), rows)


def _without_planes(message: feed_pb.GetBatchRequest) -> feed_pb.GetBatchRequest:
    """Return a request without planes, which have no effect here."""
    found = feed_pb.GetBatchRequest()
    found.CopyFrom(message)
    found.ClearField("planes")
    return found


def _without_rows(message: feed_pb.GetBatchRequest) -> feed_pb.GetBatchRequest:
    """Return a request without what has no effect on a whole order: planes, redactions, and which
    rows a call begins and ends with.
    """
    found = _without_planes(message)
    for field in ("first_row", "num_batches"):
        found.ClearField(field)
    if found.redactions:
        # The expected identity is that of the redacted stream.
        for field in ("redactions", "expected_identity", "identity_version"):
            found.ClearField(field)
    return found


def _redacted(rows: RedactedRows, spans: Spans) -> RowSpans:
    """Return what is redacted in each row, from plane 53."""
    found: RowSpans = [[] for _ in range(len(spans))]
    for row, first, end in redacted_runs.runs_of(rows.marks(spans)):
        found[row].append((first, end))
    return found
