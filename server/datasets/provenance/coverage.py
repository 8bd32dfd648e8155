"""Coverage: the ranges of tokens that samples of one order have, all together.

In an order with epochs the places are walked in order, so that an answer is compact: what the next
windows of the corpus hold. The inverse of the order says which of them are among the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidRequest, LimitExceeded
from tokenfeed.sampling.plan import (
    PLAN_ROWS,
    over_files,
    own_sample_of,
    place_count,
    place_of,
    rows_at_once,
    spans_at,
)
from tokenfeed.sampling.spans import Numbers, Spans
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.v1 import provenance_pb2 as pb

from .sources import Sources
from .spans import Candidates, NumberRanges

SPANS_MAX = 65536
"""Samples of a request, and ranges of an answer."""
_PLACES_MAX = 1 << 18
"""Places that a call walks, or samples of an order without epochs."""
_SORTED_MAX = 1 << 20
"""Samples that are turned into places and sorted, which takes 0.1 s, rather than many more places
into samples."""


def coverage(sources: Sources, query: pb.CoverageRequest) -> pb.CoverageResponse:
    """Return what the next places hold.

    sources: of a stream over one dataset.
    Raises: InvalidRequest, CorpusChanged, Unreadable; LimitExceeded if a row has too many pieces.
    """
    stream = sources.stream
    has_epochs = stream.source.order.HAS_EPOCHS
    count = place_count(stream, stream.source, sources.shapes[0])
    samples = _samples(query, count if has_epochs else None)
    walk = _Walk(sources, samples, count)
    answer = pb.CoverageResponse(places=walk.places)
    if query.first_place < walk.places:
        page = walk.page(query.first_place)
        answer.row_count = page.rows
        if page.end < walk.places:
            answer.next_place = page.end
        answer.ranges.extend(_messages(sources, page.ranges))
        answer.files.extend(sources.files((0, file) for file in page.ranges.file.tolist()))
    return answer


def _samples(query: pb.CoverageRequest, epoch_samples: int | None) -> NumberRanges:
    """Return the samples of a request.  epoch_samples: of an epoch; None without epochs.

    Raises: InvalidRequest.
    """
    if not 1 <= len(query.samples) <= SPANS_MAX:
        raise InvalidRequest("samples", f"are {len(query.samples)} spans, not 1 to {SPANS_MAX}")
    bounds = [bound for one in query.samples for bound in (one.first_sample, one.end_sample)]
    if bounds[-1] > SAMPLE_END or any(first >= end for first, end in pairwise(bounds)):
        problem = "have to ascend, with a sample in each, neither overlap nor touch, and end at"
        raise InvalidRequest("samples", f"{problem} 2^63 at most")
    if epoch_samples is not None:
        first, last = bounds[0] // epoch_samples, (bounds[-1] - 1) // epoch_samples
        if first != last:
            problem = f"are of the epochs {first} to {last}; ask for each epoch of {epoch_samples}"
            raise InvalidRequest("samples", f"{problem} samples by itself")
    firsts = np.array(bounds[::2], dtype=np.int64)
    lasts = np.array([end - 1 for end in bounds[1::2]], dtype=np.int64)  # an end may be 2^63
    return NumberRanges.of(firsts, lasts)


class _Ranges(NamedTuple):
    """Ranges of tokens: int64[n] each.  rows: how many rows, or pieces of rows, have them."""

    file: Numbers
    first: Numbers
    end: Numbers
    rows: Numbers


class _Page(NamedTuple):
    """end: of the places that were walked.  rows: how many are among the samples."""

    end: int
    rows: int
    ranges: _Ranges


class _Walk:
    """The places of an order, and which of them samples have."""

    def __init__(self, sources: Sources, samples: NumberRanges, place_count: int) -> None:
        """place_count: of the order."""
        self._sources = sources
        self._stream = sources.stream
        self._shape = sources.shapes[0]
        self._source = over_files(self._stream, self._stream.source, self._shape)
        self._samples = samples
        self._place_count = place_count
        self._has_epochs = self._source.order.HAS_EPOCHS
        self._epoch = int(samples.firsts[0]) // place_count

    @property
    def places(self) -> int:
        """How many there are: samples for an order without epochs."""
        return self._place_count if self._has_epochs else self._samples.total

    @property
    def _is_complete(self) -> bool:
        return self._has_epochs and self._samples.total == self._place_count

    def page(self, first: int) -> _Page:
        """Walk from a place on."""
        if self._is_complete and not self._stream.reads_documents:
            return self._of_files(first)
        parts: list[tuple[Numbers, Spans]] = []
        left = SPANS_MAX
        for numbers, places, end in self._chunks(first):
            spans = spans_at(self._stream, self._source, self._shape, places)
            fitting = int(np.searchsorted(spans.first_span, left, side="right")) - 1
            parts.append((numbers[:fitting], spans[:fitting]))
            left -= int(spans.first_span[fitting])
            if fitting < len(spans):
                end = int(numbers[fitting])
                break
        if left == SPANS_MAX and end == first:
            problem = f"a row has more pieces than this server lists, {SPANS_MAX}"
            raise LimitExceeded("context_length", problem)
        numbers = np.concatenate([part[0] for part in parts])
        spans = Spans.joined([part[1] for part in parts])
        affordable = self._sources.affordable(spans)
        if affordable < len(spans):
            end, spans = int(numbers[affordable]), spans[:affordable]
        return _Page(end, len(spans), self._merged(spans))

    def _chunks(self, first: int) -> Iterator[tuple[Numbers, Numbers, int]]:
        """Yield the next places that samples have, with their numbers, which ascend, and up to
        where this has walked.
        """
        size = rows_at_once(self._stream, [self._shape])
        if self._is_sparse:
            places = self._sorted()
            places = places[np.searchsorted(places, first) :]
            ends = np.append(places, self.places)
            for begin in range(0, max(1, places.size), size):
                part = places[begin : begin + size]
                yield part, part, int(ends[min(begin + size, places.size)])
            return
        end = min(first + _PLACES_MAX, self.places)
        for begin in range(first, end, size):
            until = min(begin + size, end)
            numbers = begin + np.arange(until - begin)
            if self._has_epochs:
                if not self._is_complete:
                    numbers = numbers[self._samples.have(self._samples_of(numbers))]
                yield numbers, numbers, until
            else:
                yield numbers, self._places_of(self._samples.at(numbers)), until

    @property
    def _is_sparse(self) -> bool:
        """Whether it is quicker to sort the places of all samples, for each page."""
        total = self._samples.total
        pages = total // SPANS_MAX + 1
        return self._has_epochs and total <= _SORTED_MAX and 2 * total * pages < self._place_count

    def _sorted(self) -> Numbers:
        found = np.empty(self._samples.total, dtype=np.int64)
        for begin in range(0, found.size, PLAN_ROWS):
            numbers = np.arange(begin, min(begin + PLAN_ROWS, found.size))
            found[numbers] = self._places_of(self._samples.at(numbers))
        found.sort()
        return found

    def _places_of(self, samples: Numbers) -> Numbers:
        return place_of(self._source, samples, self._place_count)

    def _samples_of(self, places: Numbers) -> Numbers:
        epochs = np.full_like(places, self._epoch)
        # At or above 2^63, in the last epoch, this is negative, and no sample.
        return own_sample_of(self._source, places, epochs, self._place_count).view(np.int64)

    def _of_files(self, first: int) -> _Page:
        """Walk windows that samples have all: file by file."""
        places = self._shape.places(self._stream.context_length, has_epochs=True)
        begin = int(np.searchsorted(places.ends, first, side="right"))
        files = np.arange(begin, min(places.ends.size, begin + SPANS_MAX))
        files = files[places.ends[files] > places.firsts[files]]
        spans = Spans.of_windows(self._stream.row_tokens, files, np.zeros_like(files))
        files = files[: self._sources.affordable(spans)]
        begins = np.maximum(places.firsts[files], first)
        counts = places.ends[files] - begins
        first_tokens = (begins - places.firsts[files]) * places.stride
        end_tokens = first_tokens + (counts - 1) * places.stride + self._stream.row_tokens
        ranges = _Ranges(files, first_tokens, end_tokens, counts)
        return _Page(int(places.ends[files[-1]]), int(counts.sum()), ranges)

    def _merged(self, spans: Spans) -> _Ranges:
        """Return the tokens of rows: one range where ranges touch, if there are epochs."""
        file, first = spans.shard, spans.token_offset
        end, ones = first + spans.token_count, np.ones_like(file)
        if not self._has_epochs or not file.size:
            return _Ranges(file, first, end, ones)
        order = np.lexsort((first, file))
        # All files as one sequence of tokens, with a gap between two of them.
        base = np.cumsum(self._shape.token_counts + 1) - self._shape.token_counts
        begins = (base[file] + first)[order]
        reached = np.maximum.accumulate((base[file] + end)[order])
        heads = np.flatnonzero(np.append(True, begins[1:] > reached[:-1]))
        tails = np.append(heads[1:], begins.size) - 1
        file = file[order][heads]
        return _Ranges(file, first[order][heads], reached[tails] - base[file], tails - heads + 1)


def _messages(sources: Sources, ranges: _Ranges) -> Iterator[pb.CoveredRange]:
    """Yield ranges with the documents that have some of their tokens."""
    firsts, counts = np.zeros((2, ranges.file.size), dtype=np.int64)
    documents = sources.documents[0]
    if documents.are_known:
        for file in np.unique(ranges.file).tolist():
            own = np.flatnonzero(ranges.file == file)
            known = documents.of_file(file)
            bounds = ranges.first[own], ranges.end[own]
            near = Candidates.of(known.first_tokens, known.end_tokens, *bounds)
            firsts[own], counts[own] = known.first_number + near.first, near.counts
    columns = (*ranges, firsts, counts)
    for file, first, end, rows, document, count in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        message = pb.CoveredRange(file=file, first_token=first, end_token=end, row_count=rows)
        if count:
            message.first_document, message.end_document = document, document + count
        yield message
