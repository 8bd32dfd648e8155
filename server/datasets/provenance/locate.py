"""Locate: the ranges of tokens that rows are made of, cut at documents where these are known."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import LimitExceeded
from tokenfeed.sampling.mixture import locate as locate_samples
from tokenfeed.sampling.plan import PLAN_ROWS, place_count, plan, rows_at_once
from tokenfeed.sampling.spans import Spans
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import Request

from .documents import Document, FileDocuments
from .marks import SPAN_BYTES, Marks, messages, unmarked
from .sources import Sources, range_message
from .spans import Candidates, Parts, cut

Numbers = npt.NDArray[np.int64]

ROWS_MAX = min(1024, PLAN_ROWS)
"""In an answer; with PAGE_RANGES, about 10 ms of work: streams wait meanwhile."""
PAGE_RANGES = 2048
"""In an answer of several rows."""
RANGES_MAX = 65536
"""In one row."""
_RANGE_BYTES = 64
"""About the size of a range in an answer, without an id."""
_ANSWER_BYTES = 3 << 20
"""Most clients accept 4 MiB."""


def locate(sources: Sources, request: Request, marks: Marks = unmarked) -> pb.LocateResponse:
    """Return where the first rows of a request come from.

    request: checked as by GetBatch.
    Raises: LimitExceeded if the first row has too many ranges; CorpusChanged, Unreadable.
    """
    shapes = sources.shapes
    count = min(request.row_count, ROWS_MAX, rows_at_once(request.stream, shapes))
    samples = request.position.samples(request.first_row, count)
    spans = plan(request.stream, shapes, samples)
    spans = spans[: sources.affordable(spans)]
    near = _near(sources, spans)
    spans = spans[: _rows_within(spans, near, samples)]
    parts = _parts(spans, near)
    described = _documents(sources, spans, parts)
    facts = _RowFacts.of(sources, samples[: len(spans)])
    marked = marks(spans)
    mark_counts = marked.counts()
    rows: list[pb.LocatedRow] = []
    used: set[tuple[int, int]] = set()
    size_bytes = 0
    padding = spans.padding.tolist()
    for row, ranges in enumerate(_ranges_of_rows(spans, parts)):
        size_bytes += sum(_RANGE_BYTES + len(described[part].id) for part in ranges)
        size_bytes += SPAN_BYTES * mark_counts[row]
        if rows and size_bytes > _ANSWER_BYTES:
            break
        located = pb.LocatedRow(
            ranges=[described[part].message for part in ranges],
            padding_tokens=padding[row],
            redacted=messages(marked.redacted[row]),
            deleted=messages(marked.deleted[row]),
        )
        facts.set(located, row)
        rows.append(located)
        used.update(described[part].place for part in ranges)
    return pb.LocateResponse(rows=rows, files=sources.files(used))


class _Range(NamedTuple):
    """A range as in an answer.  place: source and file.  id: of its document."""

    message: pb.LocatedRange
    place: tuple[int, int]
    id: str


class _RowFacts(NamedTuple):
    """Of rows: numbers of their sources, samples, own samples, and epochs, None without."""

    sources: list[int]
    samples: list[int]
    own_samples: list[int]
    epochs: list[int | None]

    @classmethod
    def of(cls, sources: Sources, samples: Numbers) -> _RowFacts:
        stream = sources.stream
        place, own = locate_samples(stream.stage, stream.seed, samples)
        places = [
            place_count(stream, source, shape) if source.order.HAS_EPOCHS else None
            for source, shape in zip(stream.sources, sources.shapes, strict=True)
        ]
        pairs = list(zip(place.tolist(), own.tolist(), strict=True))
        epochs = [None if (n := places[index]) is None else own // n for index, own in pairs]
        numbers = [stream.numbers[index] for index in place.tolist()]
        return cls(numbers, samples.tolist(), own.tolist(), epochs)

    def set(self, row: pb.LocatedRow, index: int) -> None:
        row.source = self.sources[index]
        row.sample = self.samples[index]
        row.source_sample = self.own_samples[index]
        if (epoch := self.epochs[index]) is not None:
            row.epoch = epoch


def _groups(spans: Spans) -> Iterator[tuple[int, int, Numbers]]:
    """Yield each source and file, and the spans in it, ascending."""
    order = np.lexsort((spans.shard, spans.source))
    source, shard = spans.source[order], spans.shard[order]
    borders = np.flatnonzero((np.diff(source) != 0) | (np.diff(shard) != 0)) + 1
    for group in np.split(order, borders):
        if group.size:
            yield int(spans.source[group[0]]), int(spans.shard[group[0]]), group


class _DocumentCandidates(NamedTuple):
    """Spans of a file, and the documents that they may overlap.  spans: int64[n], ascending."""

    spans: Numbers
    documents: FileDocuments
    near: Candidates

    @property
    def ranges_max(self) -> Numbers:
        """int64[n], how many ranges each span may have: one for each document, and for what is
        before, between and behind them.
        """
        counts = self.near.counts
        return counts if self.documents.have_all_tokens else 2 * counts + 1


def _near(sources: Sources, spans: Spans) -> list[_DocumentCandidates]:
    """Return the documents that spans may overlap, of each file whose documents are known."""
    found = []
    for source, file, group in _groups(spans):
        if sources.documents[source].are_known:
            documents = sources.documents[source].of_file(file)
            firsts = spans.token_offset[group]
            ends = firsts + spans.token_count[group]
            near = Candidates.of(documents.first_tokens, documents.end_tokens, firsts, ends)
            found.append(_DocumentCandidates(group, documents, near))
    return found


def _rows_within(spans: Spans, near: list[_DocumentCandidates], samples: Numbers) -> int:
    """Return how many rows have few enough ranges together, or one, found before any is made: a
    row of millions of tokens may have millions of documents.

    Raises: LimitExceeded if the first row has too many.
    """
    counts = np.ones_like(spans.shard)
    for one in near:
        counts[one.spans] = one.ranges_max
    row_ends = np.cumsum(counts)[spans.first_span[1:] - 1]
    if len(spans) and row_ends[0] > RANGES_MAX:
        problem = f"sample {samples[0]} has {row_ends[0]} ranges of tokens, above the limit"
        raise LimitExceeded("context_length", f"{problem} of this server, {RANGES_MAX}")
    return max(int(np.searchsorted(row_ends, PAGE_RANGES, side="right")), min(1, len(spans)))


def _parts(spans: Spans, near: list[_DocumentCandidates]) -> Parts:
    """Return spans, cut at documents.  near: of these spans, and perhaps of others behind them."""
    ends = spans.token_offset + spans.token_count
    is_cut = np.zeros(spans.shard.size, dtype=np.bool_)
    parts = []
    for group, documents, of_group in near:
        own = group[: np.searchsorted(group, spans.shard.size)]
        is_cut[own] = True
        within = Candidates(*(column[: own.size] for column in of_group))
        found = cut(documents, spans.token_offset[own], ends[own], within)
        parts.append(found._replace(span=own[found.span]))
    others = np.flatnonzero(~is_cut)
    whole = Parts(others, spans.token_offset[others], ends[others], np.full(others.size, -1))
    joined = [np.concatenate(columns) for columns in zip(*parts, whole, strict=True)]
    ascending = np.lexsort((joined[1], joined[0]))
    return Parts(*(column[ascending] for column in joined))


def _documents(sources: Sources, spans: Spans, parts: Parts) -> list[_Range]:
    """Return each part as in an answer."""
    source, file = spans.source[parts.span], spans.shard[parts.span]
    found: dict[tuple[int, int, int], Document] = {}
    groups = np.unique(np.stack([source, file, parts.of], axis=1)[parts.of >= 0], axis=0)
    borders = np.flatnonzero((np.diff(groups[:, :2], axis=0) != 0).any(axis=1)) + 1
    for group in np.split(groups, borders):
        if group.size:
            place = int(group[0, 0]), int(group[0, 1])
            numbers = group[:, 2].tolist()
            documents = sources.documents[place[0]].described(place[1], numbers)
            found |= {(*place, n): one for n, one in zip(numbers, documents, strict=True)}
    ranges = []
    columns = (source, file, parts.of, parts.first_token, parts.end_token)
    for where, of_file, number, first, end in zip(*(c.tolist() for c in columns), strict=True):
        document = found.get((where, of_file, number))
        message = range_message(of_file, first, end, document)
        ranges.append(_Range(message, (where, of_file), document.id if document else ""))
    return ranges


def _ranges_of_rows(spans: Spans, parts: Parts) -> Iterator[range]:
    """Yield which parts each row has."""
    borders = np.searchsorted(parts.span, spans.first_span).tolist()
    for first, end in pairwise(borders):
        yield range(first, end)
