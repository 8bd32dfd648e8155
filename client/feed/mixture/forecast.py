"""What a stream will read: the samples of each source in each stage, and where sources end. Pure.

Exact: all samples are Python integers, counted and never drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tokenfeed.sampling.mixture import counts_at
from tokenfeed.stream.schedule import Exhausted, without_exhausted
from tokenfeed.stream.stage import Stage
from tokenfeed.stream.stream import Stream

from .block_weights import largest_remainders, worst_deviation
from .recipe import limits_of

DELAY_STEPS_MAX = 50
"""Beyond this delay of a stage, smaller blocks are offered."""


def sample_at(stream: Stream, tokens: int) -> int:
    """Return the sample before which there are that many tokens of x, rounded up to a whole one."""
    begin = 0
    for place, stage in enumerate(stream.stages):
        sample, end = begin - -tokens // stage.context_length, stream.end_of(place)
        if end is None or sample <= end:
            break
        tokens -= (end - begin) * stage.context_length
        begin = end
    return sample


def tokens_before(stream: Stream, sample: int) -> int:
    """Return how many tokens of x there are before a sample."""
    tokens = begin = 0
    for place, stage in enumerate(stream.stages):
        end = min(sample, stream.end_of(place) or sample)
        tokens += max(0, end - begin) * stage.context_length
        begin = end
    return tokens


@dataclass(frozen=True, slots=True)
class StageForecast:
    """A stage from the first sample of a forecast on.

    proportions: what its weights were made from, integers in any unit, by the numbers of the
    sources; None if that is not known.  samples: of each source that it reads, up to the end of the
    forecast; nothing if the stage is not reached.
    """

    stage: Stage
    proportions: Mapping[int, int] | None
    samples: Mapping[int, int]

    @property
    def delay_samples(self) -> int:
        """From the sample that it was asked for to the block border where it begins."""
        return self.stage.first_sample - self.stage.asked

    def asked_share(self, source: int) -> Fraction | None:
        """Return the share of a source that was asked for; None if it is not known."""
        if self.proportions is None:
            return None
        return Fraction(self.proportions.get(source, 0), sum(self.proportions.values()))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The samples of a stream in [first_sample, end_sample).

    numbers: of the sources that the forecast is about.  rows: of an epoch of those that have
    epochs.  asked_end_sample: up to where it was asked for; end_sample is less if a source is
    exhausted before.  stages: those that have not ended by first_sample.  samples: of each source
    in all of them.  before: the same before first_sample.  exhausted: where sources end before
    asked_end_sample if the stream goes on without each of them; it ends at the first one.
    going_on: the stages of the stream that goes on.  going_on_end: where that one ends too; None if
    it does not.
    """

    stream: Stream
    numbers: Sequence[int]
    rows: Mapping[int, int]
    first_sample: int
    end_sample: int
    asked_end_sample: int
    stages: Sequence[StageForecast]
    samples: Mapping[int, int]
    before: Mapping[int, int]
    exhausted: Sequence[Exhausted]
    going_on: Sequence[Stage]
    going_on_end: int | None

    def epochs(self, source: int, samples: int) -> Fraction | None:
        """Return samples of a source as epochs of it; None if its order has none."""
        return Fraction(samples, self.rows[source]) if source in self.rows else None


def forecast(
    stream: Stream,
    rows: Mapping[int, int],
    *,
    first_sample: int,
    end_sample: int,
    max_epochs: Mapping[str, int],
    proportions: Mapping[int, Mapping[int, int]] | None = None,
) -> Forecast:
    """Return what a stream does in [first_sample, end_sample), end_sample at most 2^63.

    rows: of each source that it reads there, by its number.  max_epochs: by the names of datasets.
    proportions: of stages, by their indices, as in StageForecast.
    Raises: InvalidRequest, as `limits_of`.
    """
    limits = limits_of(stream, max_epochs, rows, first_sample)
    going_on = without_exhausted(stream.stages, limits, end_sample, first_sample)
    end = min([end_sample, *(one.sample for one in going_on.exhausted[:1])])
    end = max(end, first_sample)
    current = stream.place_of(min(first_sample, end_sample - 1))
    stages = [
        StageForecast(
            stage,
            (proportions or {}).get(stage.index),
            _samples(stream, place, first_sample, end),
        )
        for place, stage in enumerate(stream.stages[current:], current)
    ]
    before = counts_at(stream.stages[current], stream.seed, first_sample)
    return Forecast(
        stream=stream,
        numbers=sorted(rows),
        rows={
            number: count
            for number, count in rows.items()
            if stream.sources[number].order.HAS_EPOCHS
        },
        first_sample=first_sample,
        end_sample=end,
        asked_end_sample=end_sample,
        stages=stages,
        samples={number: sum(each.samples.get(number, 0) for each in stages) for number in rows},
        before={number: before.get(number, 0) for number in rows},
        exhausted=going_on.exhausted,
        going_on=going_on.stages,
        going_on_end=going_on.end_sample,
    )


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
    """Blocks by which every stage begins less than DELAY_STEPS_MAX steps late.

    block: their maximum number of samples.  stage, source: index and number, whose share is off the
    most then.  asked_share, share: what was asked for, and what it would be; 0 if these blocks are
    too small for the source.  deviation: of the share, relative to what was asked for.
    """

    block: int
    stage: int
    source: int
    asked_share: Fraction
    share: Fraction
    deviation: Fraction


def smaller_blocks(stages: Sequence[StageForecast], global_batch_size: int) -> SmallerBlocks | None:
    """Return the blocks that let all stages begin in time; None if they do.

    stages: all of a mixture, with their proportions.  global_batch_size: rows of a step.
    """
    block = DELAY_STEPS_MAX * global_batch_size
    if all(each.delay_samples <= block for each in stages):
        return None
    return max(
        (_with_blocks(each, block) for each in stages if each.stage.block_size > block),
        key=lambda found: found.deviation,
    )


def _with_blocks(forecast: StageForecast, block: int) -> SmallerBlocks:
    assert forecast.proportions is not None
    asked = {str(number): part for number, part in forecast.proportions.items()}
    counts = largest_remainders(asked, block)
    name, deviation = worst_deviation(asked, counts)
    asked_share = Fraction(asked[name], sum(asked.values()))
    share = Fraction(counts[name], block)
    return SmallerBlocks(block, forecast.stage.index, int(name), asked_share, share, deviation)
