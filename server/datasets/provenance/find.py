"""Find: the rows that hold documents, or a range of tokens.

In an order with epochs the rows are known by their places, and the inverse of the order says when
each epoch has them. An order without epochs is searched, sample by sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidRequest, NotFound, listed, shortened
from tokenfeed.sampling.inverse import SampleMatches, SampleRange
from tokenfeed.sampling.plan import PLAN_ROWS, Shape, place_of, rows_at_once, rows_key, spans_at
from tokenfeed.sampling.spans import Numbers
from tokenfeed.v1 import provenance_pb2 as pb

from ...storage.documents import RowIndex
from ..redactions.ranges import TokenRanges
from .documents import IDS_MAX, DatasetDocuments
from .sources import Marks, RowMarks, Sources, messages, unmarked
from .spans import Candidates, NumberRanges, Parts, overlaps

CANDIDATES_AT_ONCE = 1 << 12
"""Candidates of places that a call examines; each may be a row of the answer."""
SAMPLES_AT_ONCE = 1 << 19
"""The same for an order without epochs, of which few are rows of the answer."""
SPANS_MAX = 65536
"""Of all rows of an answer."""
_SEARCH_SECONDS = 1.0
"""For which the ids of a dataset are searched in one call."""
_PIECES_MAX = 1 << 20
"""Pieces of documents that lead to rows one by one; more, and all rows of their file are examined,
so that no call holds many."""


def find(sources: Sources, query: pb.FindRequest, marks: Marks = unmarked) -> pb.FindResponse:
    """Return some of the rows that hold what is asked for.

    sources: of the stream of the query.  query: its stream and its samples are checked.
    Raises: InvalidRequest, NotFound, CorpusChanged, Unreadable.
    """
    index = _source(sources, query.source)
    documents, shape = sources.documents[index], sources.shapes[index]
    looked_for = _looked_for(documents, shape, query)
    bounds = [(each.file, each.first_token, each.end_token) for each in looked_for]
    wanted = TokenRanges.of(each for each in bounds if each[1] < each[2])
    sample_bounds = query.first_sample, query.end_sample
    samples = SampleRange.of(sources.stream, index, shape, *sample_bounds)
    search = _Search(sources, index, samples, wanted, marks)
    answer = search.page(query.first_candidate)
    answer.looked_for.extend(looked_for)
    answer.files.extend(sources.files((index, each.file) for each in looked_for))
    return answer


def _source(sources: Sources, number: int) -> int:
    """Return the place of a source in the stream.  Raises: InvalidRequest."""
    if number not in sources.stream.numbers:
        problem = f"{number} is not the number of a source of this stream"
        raise InvalidRequest("source", problem)
    return sources.stream.numbers.index(number)


def _looked_for(
    documents: DatasetDocuments, shape: Shape, query: pb.FindRequest
) -> list[pb.LocatedRange]:
    """Return what is asked for.  Raises: InvalidRequest, NotFound, Unreadable."""
    what = query.WhichOneof("what")
    if what == "range":
        return [_range(documents, shape, query.range)]
    if what == "document":
        found = [documents.by_number(query.document)]
    elif what == "document_id":
        found = documents.by_id(query.document_id, IDS_MAX, _SEARCH_SECONDS)
    else:
        raise InvalidRequest("what", "is missing: document, document_id or range")
    return [
        pb.LocatedRange(
            file=one.file, first_token=one.first_token, end_token=one.end_token, document=one
        )
        for one in found
    ]


def _range(documents: DatasetDocuments, shape: Shape, query: pb.FileRange) -> pb.LocatedRange:
    """Return a range that is asked for.  Raises: InvalidRequest, NotFound."""
    file = query.file
    if query.file_name:
        files = documents.files_named(query.file_name)
        if len(files) > 1:
            numbers = listed([str(each) for each in files])
            raise InvalidRequest("file_name", f"has several files: {numbers}; name one by number")
        if not files:
            raise NotFound("file_name", f"{shortened(query.file_name)!r} is not in the dataset")
        (file,) = files
    elif file >= shape.token_counts.size:
        raise NotFound("file", f"{file} is not in [0, {shape.token_counts.size})")
    count = int(shape.token_counts[file])
    if not query.first_token < query.end_token <= count:
        problem = f"[{query.first_token}, {query.end_token}) has no token, or ends beyond"
        raise InvalidRequest("range", f"{problem} the file, which has {count}")
    return pb.LocatedRange(file=file, first_token=query.first_token, end_token=query.end_token)


class _Page(NamedTuple):
    """What was examined.  end: of the candidates.  found: rows that may hold tokens.  candidates:
    of each of them.  places: of each.
    """

    end: int
    found: SampleMatches
    candidates: list[int]
    places: Numbers


class _Search:
    """A search for tokens of one source."""

    def __init__(
        self,
        sources: Sources,
        index: int,
        samples: SampleRange,
        wanted: TokenRanges,
        marks: Marks,
    ) -> None:
        """index: of the source.  samples: those that are examined."""
        self._sources = sources
        self._index = index
        self._samples = samples
        self._shape = sources.shapes[index]
        self._marks = marks
        self._has_epochs = samples.source.order.HAS_EPOCHS
        self._places = _places_of(sources, index, wanted)
        # All files as one sequence of tokens.
        self._bases = np.cumsum(self._shape.token_counts) - self._shape.token_counts
        self._firsts = self._bases[wanted.files] + wanted.first_tokens
        self._ends = self._bases[wanted.files] + wanted.end_tokens

    @property
    def candidates(self) -> int:
        """How many there are."""
        if not self._places.total:
            return 0
        if self._has_epochs:
            epochs = self._samples.epochs  # there may be more than `len` can tell
            return (epochs.stop - epochs.start) * self._places.total
        return max(0, self._samples.end_own - self._samples.first_own)

    def page(self, first: int) -> pb.FindResponse:
        """Return rows from a candidate on."""
        total = self.candidates
        answer = pb.FindResponse(candidates=total)
        if first >= total:
            return answer
        page = self._of_places(first) if self._has_epochs else self._of_samples(first)
        end, rows = self._rows(page)
        answer.rows.extend(rows)
        if end < total:
            answer.next_candidate = end
        return answer

    def _of_places(self, first: int) -> _Page:
        """Examine places, epoch by epoch."""
        count, most = self._places.total, CANDIDATES_AT_ONCE
        if self._samples.source.reads_documents:
            most = min(most, rows_at_once(self._sources.stream, self._sources.shapes))
        end = min(first + most, self.candidates)
        epoch, number = divmod(first, count)
        numbers = number + np.arange(end - first)
        epochs = self._samples.epochs.start + epoch + numbers // count
        places = self._places.at(numbers % count)
        found = self._samples.of_places(places, epochs)
        candidates = [first + at for at in found.at.tolist()]
        return _Page(end, found, candidates, places[found.at])

    def _of_samples(self, first: int) -> _Page:
        """Examine samples."""
        source, count = self._samples.source, self._samples.place_count
        first_own = self._samples.first_own
        end = min(first + SAMPLES_AT_ONCE, self.candidates)
        owns, places, found_count = [], [], 0
        for begin in range(first, end, PLAN_ROWS):
            size = min(PLAN_ROWS, end - begin)
            own = first_own + begin + np.arange(size)
            place = place_of(source, own, count)
            at = np.flatnonzero(self._places.have(place))
            owns.append(own[at])
            places.append(place[at])
            found_count += at.size
            if found_count >= CANDIDATES_AT_ONCE:
                end = begin + size
                break
        own, place = np.concatenate(owns), np.concatenate(places)
        found = self._samples.of_own(own)
        candidates = [each - first_own for each in own[found.at].tolist()]
        return _Page(end, found, candidates, place[found.at])

    def _rows(self, page: _Page) -> tuple[int, list[pb.FoundRow]]:
        """Return the rows of a page with their spans, and the end of the candidates that were done:
        earlier than that of the page if there would be too many spans.
        """
        source = self._samples.source
        spans = spans_at(self._sources.stream, source, self._shape, page.places)
        spans = replace(spans, source=np.full_like(spans.shard, self._index))
        firsts = self._bases[spans.shard] + spans.token_offset
        ends = firsts + spans.token_count
        near = Candidates.of(self._firsts, self._ends, firsts, ends)
        row_of = spans.row_of_span
        marked = self._marks(spans)
        counts = np.bincount(row_of, near.counts, len(spans)).astype(np.int64) + marked.counts()
        sums = np.cumsum(counts)
        row_count = max(1, int(np.searchsorted(sums, SPANS_MAX, side="right")))
        end = page.candidates[row_count] if row_count < len(spans) else page.end
        own = slice(0, int(spans.first_span[min(row_count, len(spans))]))
        near = Candidates(near.first[own], near.counts[own])
        parts = overlaps(self._firsts, self._ends, firsts[own], ends[own], near)
        within = parts.first_token - firsts[parts.span] + spans.places_in_row[parts.span]
        return end, list(self._messages(page.found, marked, row_of[parts.span], within, parts))

    def _messages(
        self, found: SampleMatches, marked: RowMarks, rows: Numbers, within: Numbers, parts: Parts
    ) -> Iterator[pb.FoundRow]:
        """Yield rows that have some tokens.  rows, within: int64[parts], ascending by row."""
        spans: dict[int, list[pb.TokenSpan]] = {}
        sizes = (parts.end_token - parts.first_token).tolist()
        for index, first, size in zip(rows.tolist(), within.tolist(), sizes, strict=True):
            span = pb.TokenSpan(first_token=first, end_token=first + size)
            spans.setdefault(index, []).append(span)
        for index, of_row in spans.items():
            own = int(found.own_samples[index])
            yield pb.FoundRow(
                sample=int(found.samples[index]),
                source_sample=own,
                epoch=own // self._samples.place_count if self._has_epochs else None,
                spans=of_row,
                redacted=messages(marked.redacted[index]),
                deleted=messages(marked.deleted[index]),
            )


def _places_of(sources: Sources, index: int, wanted: TokenRanges) -> NumberRanges:
    """Return the places whose rows may hold tokens."""
    source, stream = sources.stream.sources[index], sources.stream
    if not len(wanted):
        return NumberRanges.merged(wanted.files, wanted.files)
    if source.reads_documents:
        return _rows_of(sources, index, wanted)
    has_epochs = source.order.HAS_EPOCHS
    places = sources.shapes[index].places(stream.context_length, has_epochs=has_epochs)
    stride = places.stride
    # The window at place w has the tokens [w * stride, w * stride + T + 1).
    first = np.maximum(-((stream.context_length - wanted.first_tokens) // stride), 0)
    end = (wanted.end_tokens - 1) // stride + 1
    begins, counts = places.firsts[wanted.files], (places.ends - places.firsts)[wanted.files]
    return NumberRanges.merged(begins + np.minimum(first, counts), begins + np.minimum(end, counts))


def _rows_of(sources: Sources, index: int, wanted: TokenRanges) -> NumberRanges:
    """Return the rows over documents whose pieces hold tokens. They are kept for the next pages: a
    scan of many files takes longer than a page.
    """
    indices = sources.datasets[index].rows
    assert indices is not None
    key = rows_key(sources.stream, sources.stream.sources[index])
    rows = indices.get(key)

    def scan() -> tuple[int, NumberRanges]:
        found = _scanned(rows, wanted)
        return 3 * found.firsts.nbytes, found

    return sources.documents[index].kept((key, rows.pieces_hash, tuple(wanted.triples())), scan)


def _scanned(rows: RowIndex, wanted: TokenRanges) -> NumberRanges:
    firsts, ends = [], []
    borders = np.flatnonzero(np.diff(wanted.files)) + 1
    for own in np.split(np.arange(len(wanted)), borders):
        file = int(wanted.files[own[0]])
        bounds = wanted.first_tokens[own], wanted.end_tokens[own]
        found = rows.rows_of(file, *bounds, _PIECES_MAX)
        if isinstance(found, range):
            firsts.append(np.array([found.start]))
            ends.append(np.array([found.stop]))
        else:
            firsts.append(found)
            ends.append(found + 1)
    return NumberRanges.merged(np.concatenate(firsts), np.concatenate(ends))
