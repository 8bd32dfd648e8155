"""Which rows of a run hold some tokens, and whether the run has read them, skipped them, or will
read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, StreamMismatch, listed
from tokenfeed.sampling.own_samples import merged
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.v1 import provenance_pb2 as pb

from ..feed.history import History
from ..feed.mixture.counts import samples_before
from .asking import Provenance, found, stream_message
from .corpora import Corpora
from .runs import places_of

Numbers = npt.NDArray[np.int64]


class When(Enum):
    """What a run has done with a row."""

    SEEN = "seen"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    TO_COME = "to come"


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row that holds some of the tokens.

    parts: its stream.  epoch: of the source; None for an order without epochs.  spans: where it
    holds them, [first, end) within the row.  places: step, rank and row where it was delivered, or
    will be; several if it was read several times, none if no steps are known.  redacted: what the
    redactions of the run replace in it, as spans.  deleted: what was erased, and not replaced.
    """

    parts: StreamParts
    sample: int
    source_sample: int
    epoch: int | None
    spans: Sequence[tuple[int, int]]
    when: When
    places: Sequence[tuple[int, int, int]]
    redacted: Sequence[tuple[int, int]]
    deleted: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Samples of a stream that are looked at.

    number: of the source that is looked for.  ranges: int64[n, 2], ascending; they neither overlap
    nor touch.
    """

    parts: StreamParts
    number: int
    ranges: Numbers


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What a run has read and will read.

    history: what it has read.  is_complete: whether the history has all of it, so that what is not
    in it was skipped, or is still to come; else it is unknown.  parts, sample: of the next batch.
    coming: the batches from there on, as a history; None if their steps are unknown.  end_sample:
    where to stop looking.
    """

    history: History
    is_complete: bool
    parts: StreamParts
    sample: int
    coming: History | None
    end_sample: int


def searches(run: KnownRun, corpora: Corpora, dataset: str) -> list[Search]:
    """Return where to look for the tokens of a dataset: what was read, what was skipped in between,
    and what is still to come.

    dataset: its name; "" if there is only one.
    Raises: InvalidRequest if the run does not read it; StreamMismatch if the target has another one
    of that name.
    """
    of_stream: dict[StreamParts, list[tuple[int, int]]] = {}
    for parts, first, last in _spans(run):
        end = min(last, SAMPLE_END - 1)  # a request cannot name 2^63
        if first < end:
            of_stream.setdefault(parts, []).append((first, end))
    result, mismatch = [], None
    for parts, spans in of_stream.items():
        number = number_of(parts, dataset)
        if number is None:
            continue
        try:
            corpora.alone(parts.each_source[number], parts.context_length)
        except StreamMismatch as error:
            mismatch = error  # a run may have read several datasets, one after the other
            continue
        result.append(Search(parts, number, merged([np.array(spans, dtype=np.int64)])))
    if not result and mismatch is not None:
        raise mismatch
    if not result and of_stream:
        names = sorted({each.dataset for parts in of_stream for each in parts.sources})
        raise InvalidRequest(
            "dataset", f"{dataset!r} is not read by this run, only {listed(names)}"
        )
    return result


def _spans(run: KnownRun) -> Iterator[tuple[StreamParts, int, int]]:
    """Yield what was read and skipped, in the order of the run, and what is to come."""
    runs = run.history.runs
    end_sample, context_length = 0, (runs[0].spec if runs else run.parts).context_length
    for each in runs:
        if each.spec.context_length == context_length:
            yield each.spec, end_sample, each.first_sample
        yield each.spec, each.first_sample, each.end_sample
        end_sample, context_length = each.end_sample, each.spec.context_length
    if context_length == run.parts.context_length or not run.is_complete:
        # Of an incomplete history any sample may have been read before its first batch.
        yield run.parts, end_sample if run.is_complete else 0, min(run.sample, run.end_sample)
    yield run.parts, run.sample, run.end_sample


def number_of(parts: StreamParts, dataset: str) -> int | None:
    """Return the number of a dataset among the sources; None if it is none of them.

    dataset: "" if there is only one.  Raises: InvalidRequest if there are several.
    """
    if not parts.stages:
        return 0
    names = [each.dataset for each in parts.sources]
    if not dataset and len(names) > 1:
        raise InvalidRequest("dataset", f"has to name one of the sources: {', '.join(names)}")
    return names.index(dataset or names[0]) if dataset in ("", *names) else None


@dataclass(frozen=True, slots=True)
class FoundPage:
    """An answer.

    rows: in no particular order.  looked_for, files: what was looked for, the same in each answer.
    done: share of the samples that have been looked at.
    """

    rows: list[FoundRow]
    looked_for: Sequence[pb.LocatedRange]
    files: Sequence[pb.SourceFile]
    done: float


def find_rows(
    run: KnownRun,
    wanted: Sequence[Search],
    corpora: Corpora,
    provenance: Provenance,
    what: pb.FindRequest,
) -> Iterator[FoundPage]:
    """Yield the rows that hold some tokens, in pages.

    what: the tokens; its other fields are not used.  Raises: TokenfeedError.
    """
    parts = [
        (search, segment)
        for search in wanted
        for first, end in search.ranges.tolist()
        for segment in corpora.segments(search.parts, first, end)
        if search.number in segment.spec.numbers
    ]
    for index, (search, segment) in enumerate(parts):
        request = pb.FindRequest()
        request.CopyFrom(what)
        request.stream.CopyFrom(
            stream_message(segment.spec, segment.expected, segment.first_sample, segment.end_sample)
        )
        request.source = search.number
        request.first_candidate = 0
        for page in found(provenance, request):
            is_last = not page.HasField("next_candidate")
            share = 1.0 if is_last else page.next_candidate / max(1, page.candidates)
            done = (index + share) / len(parts)
            rows = _rows(run, search.parts, page.rows)
            yield FoundPage(rows, page.looked_for, page.files, done)


def _rows(run: KnownRun, parts: StreamParts, rows: Sequence[pb.FoundRow]) -> list[FoundRow]:
    """Return found rows with what the run has done with them."""
    samples = np.array([row.sample for row in rows], dtype=np.int64)
    seen = _places(run.history, parts, samples)
    is_ahead = parts == run.parts
    coming = _places(run.coming, parts, samples) if is_ahead and run.coming else {}
    not_read = When.SKIPPED if run.is_complete else When.UNKNOWN
    result = []
    for index, row in enumerate(rows):
        when, places = not_read, seen.get(index, [])
        if places:
            when = When.SEEN
        elif is_ahead and run.sample <= row.sample < run.end_sample:
            when, places = When.TO_COME, coming.get(index, [])
        epoch = row.epoch if row.HasField("epoch") else None
        marks = _pairs(row.redacted), _pairs(row.deleted)
        spans = _pairs(row.spans)
        result.append(
            FoundRow(parts, row.sample, row.source_sample, epoch, spans, when, places, *marks)
        )
    return result


def _pairs(spans: Iterable[pb.TokenSpan]) -> list[tuple[int, int]]:
    return [(each.first_token, each.end_token) for each in spans]


def _places(
    history: History, parts: StreamParts, samples: Numbers
) -> dict[int, list[tuple[int, int, int]]]:
    """Return the places of each sample, by its index."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    at = places_of(history, parts, samples)
    each = zip(*(values.tolist() for values in (at.index, at.step, at.rank, at.row)), strict=True)
    for index, step, rank, row in each:
        places.setdefault(index, []).append((step, rank, row))
    return places


def end_of_epoch(
    corpora: Corpora, parts: StreamParts, number: int, epochs: int | None, sample: int
) -> int | None:
    """Return the sample of a stream at which a source has ended epochs, or behind its last sample
    if a later stage drops it before; None for an order without epochs.

    number: of the source.  epochs: how many; None is those that have ended at a sample, and the
    next one.  sample: of the stream.
    """
    spec, _ = corpora.alone(parts.each_source[number], parts.context_length)
    rows = corpora.rows_per_epoch(spec)
    if rows is None:
        return None
    before = _own_before(parts, number, sample)
    wanted = rows * (epochs if epochs is not None else before // rows + 1)
    last = SAMPLE_END - 1
    if not parts.stages:
        return min(wanted, last)
    wanted = min(wanted, _own_before(parts, number, last))
    low, high = 0, min(sample + 1, last)
    while _own_before(parts, number, high) < wanted:
        low, high = high, min(2 * high, last)
    while low < high:
        middle = (low + high) // 2
        if _own_before(parts, number, middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return high


def epochs_between(
    corpora: Corpora, parts: StreamParts, number: int, first_sample: int, end_sample: int
) -> int:
    """Return how many epochs of a source samples of a stream have; 0 for an order without epochs.

    number: of the source.
    """
    spec, _ = corpora.alone(parts.each_source[number], parts.context_length)
    rows = corpora.rows_per_epoch(spec)
    if rows is None:
        return 0
    first, end = (
        _own_before(parts, number, min(each, SAMPLE_END - 1)) for each in (first_sample, end_sample)
    )
    return (end - first) // rows


def _own_before(parts: StreamParts, number: int, sample: int) -> int:
    """Return how many samples of a source a stream has before a sample."""
    return samples_before(parts, sample)[number] if parts.stages else sample
