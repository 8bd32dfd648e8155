"""What a stream will read: the samples of each source in each stage, and where sources end. Pure.

Exact: all samples are Python integers, counted and never drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tokenfeed.client.feed.mixture.recipe import first_end, limits_of
from tokenfeed.client.feed.mixture.samples_per_block import largest_remainders, worst_deviation
from tokenfeed.sampling.mixture_v1 import counts_at
from tokenfeed.stream.schedule import Exhausted, left_out, without_exhausted
from tokenfeed.stream.stage import Source, Stage
from tokenfeed.stream.stream import Stream

DELAY_STEPS_MAX = 50
"""Beyond this delay of a stage, smaller blocks are offered."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """What a stage reads within a forecast.

    proportions: the weights as they were asked for, as integers in any unit, by the numbers of the
    sources; None if they are not known.  samples: number of a source -> its samples in this stage
    between first and end sample of the forecast; empty if the stage is not reached.  left_out:
    number of a source -> tokens of x that it leaves out where the stage begins, since the context
    length changes.
    """

    stage: Stage
    proportions: Mapping[int, int] | None
    samples: Mapping[int, int]
    left_out: Mapping[int, int]

    @property
    def delay_samples(self) -> int:
        """By how many samples the stage begins later than it was asked for: stages begin at the end
        of a block.
        """
        return self.stage.first_sample - self.stage.asked

    def asked_share(self, source: int) -> Fraction | None:
        """Return the share of a source that was asked for; None if it is not known."""
        if self.proportions is None:
            return None
        return Fraction(self.proportions.get(source, 0), sum(self.proportions.values()))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The samples of a stream in [first_sample, end_sample).

    numbers: of the sources that the forecast is about.  rows: rows per epoch of those whose order
    has epochs, by number.  asked_end_sample: the end that was asked for; end_sample is lower if a
    source is exhausted before.  stages: all that have not ended by first_sample.  samples: of each
    source in [first_sample, end_sample), by number.  at_end: number of a source -> its epochs
    before end_sample, with rows that it left out; of those whose order has epochs.  exhausted:
    where sources end before asked_end_sample, in order. The stream ends where the first one does;
    the others tell what would happen if it went on without it. At several context lengths it has
    the first one alone.
    """

    stream: Stream
    numbers: Sequence[int]
    rows: Mapping[int, int]
    first_sample: int
    end_sample: int
    asked_end_sample: int
    stages: Sequence[StageForecast]
    samples: Mapping[int, int]
    at_end: Mapping[int, Fraction]
    exhausted: Sequence[Exhausted]

    @property
    def tokens(self) -> dict[int, int]:
        """Tokens of x of each source in [first_sample, end_sample), by its number."""
        return {
            number: sum(
                each.samples.get(number, 0) * each.stage.context_length for each in self.stages
            )
            for number in self.numbers
        }

    def epochs(self, source: int, tokens: int) -> Fraction | None:
        """Return tokens of x of a source as epochs of it; None if its order has none, or it has no
        row at the last context length. At several context lengths this is rounded: they leave out
        different ends of files.
        """
        if not self.rows.get(source):
            return None
        return Fraction(tokens, self.rows[source] * self.stream.context_length)


def forecast(
    stream: Stream,
    rows: Mapping[int, int],
    *,
    first_sample: int,
    end_sample: int,
    max_epochs: Mapping[str, int],
    proportions: Mapping[int, Mapping[int, int]] | None = None,
    rows_at: Callable[[int], Mapping[int, int]] | None = None,
) -> Forecast:
    """Return what a stream reads in [first_sample, end_sample); end_sample is at most 2^63.

    rows: number of a source -> its rows, per epoch if its order has epochs; for each source to be
    counted, at the last context length.  max_epochs: by the names of datasets.  proportions: as in
    StageForecast, by the indices of stages.  rows_at: returns rows at a context length, of a stream
    with several.
    Raises: InvalidRequest if max_epochs does not suffice for the first block of the stream.
    """
    current = stream.place_of(min(first_sample, end_sample - 1))
    counted = rows_at or (lambda _: rows)
    if len({stage.context_length for stage in stream.stages[current:]}) > 1:
        end = first_end(stream, max_epochs, counted, first_sample)
        ends = [] if end is None or end.sample >= end_sample else [end]
    else:
        limits = limits_of(stream, max_epochs, rows, begins=first_sample == 0)
        ends = [*without_exhausted(stream.stages, limits, end_sample, first_sample).exhausted]
    until = max(min([end_sample, *(one.sample for one in ends[:1])]), first_sample)
    stages = [
        StageForecast(
            stage,
            (proportions or {}).get(stage.index),
            _samples(stream, place, first_sample, until),
            _left_out(stream, place, counted) if place > current else {},
        )
        for place, stage in enumerate(stream.stages[current:], current)
    ]
    last = stream.stages[stream.place_of(max(until - 1, first_sample))]
    own, of_epoch = counts_at(last, stream.seed, until), counted(last.context_length)
    return Forecast(
        stream=stream,
        numbers=sorted(rows),
        rows={
            number: count
            for number, count in rows.items()
            if stream.sources[number].order.HAS_EPOCHS
        },
        first_sample=first_sample,
        end_sample=until,
        asked_end_sample=end_sample,
        stages=stages,
        samples={number: sum(each.samples.get(number, 0) for each in stages) for number in rows},
        at_end={
            number: Fraction(own.get(number, 0), of_epoch[number])
            for number in rows
            if stream.sources[number].order.HAS_EPOCHS and of_epoch[number]
        },
        exhausted=ends,
    )


def _left_out(
    stream: Stream, place: int, rows_at: Callable[[int], Mapping[int, int]]
) -> dict[int, int]:
    """Return the tokens of x that sources leave out where a stage begins, by their numbers.

    place: of the stage, in stream.stages.  rows_at: as for `forecast`.
    """
    last, stage = stream.stages[place - 1 : place + 1]
    known = [each for each in stream.sources if each.number in rows_at(last.context_length)]

    def rows(source: Source, length: int) -> int:
        return rows_at(length)[source.number]

    found = left_out(last, stage, known, rows)
    return {number: count * last.context_length for number, count in found.items()}


def _samples(stream: Stream, place: int, first_sample: int, end_sample: int) -> dict[int, int]:
    """Return the samples in [first_sample, end_sample) of each source that a stage reads."""
    stage, stage_end = stream.stages[place], stream.end_of(place)
    first = max(first_sample, stage.first_sample)
    end = end_sample if stage_end is None else min(end_sample, stage_end)
    if end <= first:
        return {}
    before, after = (counts_at(stage, stream.seed, sample) for sample in (first, end))
    return {number: after[number] - before[number] for number in stage.weights}


class SmallerBlocks(NamedTuple):
    """A limit of the block size with which every stage begins less than DELAY_STEPS_MAX steps
    (batches of all ranks) late, and what it costs.

    block: that limit, in samples.  stage, source: index of the stage and number of the source whose
    share would be off the most.  asked_share, share: the share of that source that was asked for,
    and the share that it would have; 0 if it would get no sample.  deviation: of share from
    asked_share, relative to asked_share.
    """

    block: int
    stage: int
    source: int
    asked_share: Fraction
    share: Fraction
    deviation: Fraction


def smaller_blocks(stages: Sequence[StageForecast], global_batch_size: int) -> SmallerBlocks | None:
    """Return the blocks with which no stage begins too late; None if no stage begins more than
    DELAY_STEPS_MAX steps late anyway, or not because of its blocks: a single source reads its group
    of blocks to the end before the context length changes.

    stages: all stages of a mixture, with their proportions.  global_batch_size: rows of a step, of
    all ranks together.
    """
    block = DELAY_STEPS_MAX * global_batch_size
    if all(each.delay_samples <= block for each in stages):
        return None
    return max(
        (_with_blocks(each, block) for each in stages if each.stage.block_size > block),
        key=lambda found: found.deviation,
        default=None,
    )


def _with_blocks(forecast: StageForecast, block: int) -> SmallerBlocks:
    assert forecast.proportions is not None
    asked = {str(number): part for number, part in forecast.proportions.items()}
    counts = largest_remainders(asked, block)
    name, deviation = worst_deviation(asked, counts)
    asked_share = Fraction(asked[name], sum(asked.values()))
    share = Fraction(counts[name], block)
    return SmallerBlocks(block, forecast.stage.index, int(name), asked_share, share, deviation)
