"""Which rows of a run hold some tokens, and whether the run has read them, skipped them, or will
read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import History
from tokenfeed.errors import InvalidRequest, StreamMismatch, listed
from tokenfeed.sampling.mixture import counts_at
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb

from .corpora import Corpora
from .queries import Provenance, find_pages
from .runs import Segment, places_of, segments

Numbers = npt.NDArray[np.int64]


class When(Enum):
    """What a run has done with a row."""

    SEEN = "seen"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    TO_COME = "to come"


@dataclass(frozen=True, slots=True)
class RowMatch:
    """A row that holds some of the tokens.

    source: number of its source.  epoch: of the source; None for an order without epochs.  spans:
    where it holds them, [first, end) within the row.  places: step, rank and row where it was
    delivered, or will be; several if it was read several times, none if no steps are known.
    redacted: what the redactions of the run replace in it, as spans.  deleted: what was erased, and
    not replaced.
    """

    source: int
    context_length: int
    sample: int
    source_sample: int
    epoch: int | None
    spans: Sequence[tuple[int, int]]
    when: When
    places: Sequence[tuple[int, int, int]]
    redacted: Sequence[tuple[int, int]]
    deleted: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run has read and will read.

    history: what it has read.  is_complete: whether the history has all of it, so that what is not
    in it was skipped, or is still to come; else it is unknown.  stream: known.  sample: of the next
    batch.  coming: the batches from there on, as a history; None if their steps are unknown.
    end_sample: where to stop looking at what is still to come.
    """

    history: History
    is_complete: bool
    stream: Stream
    sample: int
    coming: History | None
    end_sample: int

    @property
    def samples(self) -> range:
        """All that were read or skipped, and those to come; of an incomplete history any sample may
        have been read.
        """
        end = max(self.history.end_sample, self.sample, self.end_sample)
        # A request cannot name 2^63.
        return range(self.stream.stages[0].first_sample, min(end, SAMPLE_END - 1))


def numbers_of(stream: Stream, corpora: Corpora, dataset: str) -> list[int]:
    """Return the numbers of the sources that read a dataset.

    dataset: its name, in the run or at the target; "" if there is only one.
    Raises: InvalidRequest if it is none or has to be named.
    """
    names = sorted({source.dataset for source in stream.sources})
    if not dataset and len(names) > 1:
        raise InvalidRequest("dataset", f"has to name one of the sources: {', '.join(names)}")
    own = [
        source.number
        for source in stream.sources
        if dataset in ("", source.dataset) or dataset == corpora.name_of(source)
    ]
    if not own:
        problem = f"{dataset!r} is not read by this run, only {listed(names)}"
        raise InvalidRequest("dataset", problem)
    return own


@dataclass(frozen=True, slots=True)
class MatchPage:
    """An answer.

    rows: in no particular order.  looked_for, files: what was looked for, the same in each answer.
    done: share of the samples that have been looked at.
    """

    rows: list[RowMatch]
    looked_for: Sequence[pb.LocatedRange]
    files: Sequence[pb.SourceFile]
    done: float


def find_rows(
    run: RunRecord,
    numbers: Collection[int],
    corpora: Corpora,
    provenance: Provenance,
    what: pb.FindRequest,
) -> Iterator[MatchPage]:
    """Yield the rows that hold some tokens, in pages.

    numbers: of the sources that are looked through.  what: the tokens; its other fields are not
    used.  Raises: TokenfeedError; StreamMismatch if the target has another dataset of that name.
    """
    parts = _parts(run, numbers, corpora)
    for index, (segment, number) in enumerate(parts):
        for page in find_pages(provenance, segment, number, what):
            is_last = not page.HasField("next_candidate")
            share = 1.0 if is_last else page.next_candidate / max(1, page.candidates)
            rows = _rows(run, number, segment.stream.context_length, page.rows)
            yield MatchPage(rows, page.looked_for, page.files, (index + share) / len(parts))


def _parts(run: RunRecord, numbers: Collection[int], corpora: Corpora) -> list[tuple[Segment, int]]:
    """Return what to ask for: segments of the run, each with the number of a source."""
    parts, mismatch = [], None
    for segment in segments(run.stream, run.samples.start, run.samples.stop):
        for source in segment.stream.sources:
            if source.number not in numbers:
                continue
            try:
                corpora.alone(source, segment.stream.context_length)
            except StreamMismatch as error:
                mismatch = error  # a run may have read several datasets, one after the other
            else:
                parts.append((corpora.checked(segment), source.number))
    if not parts and mismatch is not None:
        raise mismatch
    return parts


def _rows(
    run: RunRecord, number: int, context_length: int, rows: Sequence[pb.FoundRow]
) -> list[RowMatch]:
    """Return found rows with what the run has done with them."""
    samples = np.array([row.sample for row in rows], dtype=np.int64)
    seen = _places(run.history, samples)
    coming = _places(run.coming, samples) if run.coming else {}
    not_read = When.SKIPPED if run.is_complete else When.UNKNOWN
    result = []
    for index, row in enumerate(rows):
        when, places = not_read, seen.get(index, [])
        if places:
            when = When.SEEN
        elif run.sample <= row.sample < run.end_sample:
            when, places = When.TO_COME, coming.get(index, [])
        result.append(
            RowMatch(
                source=number,
                context_length=context_length,
                sample=row.sample,
                source_sample=row.source_sample,
                epoch=row.epoch if row.HasField("epoch") else None,
                spans=_pairs(row.spans),
                when=when,
                places=places,
                redacted=_pairs(row.redacted),
                deleted=_pairs(row.deleted),
            )
        )
    return result


def _pairs(spans: Iterable[pb.TokenSpan]) -> list[tuple[int, int]]:
    return [(each.first_token, each.end_token) for each in spans]


def _places(history: History, samples: Numbers) -> dict[int, list[tuple[int, int, int]]]:
    """Return the places of each sample, by its index."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    at = places_of(history, samples)
    each = zip(*(values.tolist() for values in (at.index, at.step, at.rank, at.row)), strict=True)
    for index, step, rank, row in each:
        places.setdefault(index, []).append((step, rank, row))
    return places


def end_of_epoch(
    corpora: Corpora, stream: Stream, number: int, epochs: int | None, sample: int
) -> int | None:
    """Return the sample, from a given one on, at which a source has ended epochs, or behind its
    last sample if a later stage drops it before; None for an order without epochs.

    number: of the source.  epochs: how many; None is those that have ended at the sample, and the
    next one.
    """
    last = SAMPLE_END - 1
    before, at_last = (_epochs_before(corpora, stream, number, each) for each in (sample, last))
    if before is None or at_last is None:
        return None
    wanted = min(Fraction(epochs if epochs is not None else int(before) + 1), at_last)

    def has_ended(at: int) -> bool:
        ended = _epochs_before(corpora, stream, number, at)
        return ended is not None and ended >= wanted

    low, high = sample, sample
    while not has_ended(high):
        low, high = high, min(2 * high + 1, last)
    while low < high:
        middle = (low + high) // 2
        if has_ended(middle):
            high = middle
        else:
            low = middle + 1
    return high


def epochs_between(
    corpora: Corpora, stream: Stream, number: int, first_sample: int, end_sample: int
) -> int:
    """Return how many epochs of a source samples of a stream have; 0 for an order without epochs.

    number: of the source.
    """
    ends = (min(each, SAMPLE_END - 1) for each in (first_sample, end_sample))
    first, end = (_epochs_before(corpora, stream, number, each) for each in ends)
    return 0 if first is None or end is None else int(end - first)


def _epochs_before(corpora: Corpora, stream: Stream, number: int, sample: int) -> Fraction | None:
    """Return the epochs of a source before a sample, by the last stage that has the source; None
    for an order without epochs.
    """
    for place in range(stream.place_of(sample), -1, -1):
        stage, end = stream.stages[place], stream.end_of(place)
        if number in {share.source for share in stage.shares}:
            alone = corpora.alone(stream.sources[number], stage.context_length)
            rows = corpora.rows_per_epoch(alone)
            at = sample if end is None else min(sample, end)
            own = counts_at(stage, stream.seed, at)[number]
            return None if rows is None else Fraction(own, rows)
    return Fraction(0)
