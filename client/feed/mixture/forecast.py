"""What a mixture will do: the samples of each source in each stage, and where sources end. Pure.

Exact: all samples are Python integers, counted and never drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tokenfeed.stream.spec import StreamSpec
from tokenfeed.stream.stages import AskedStage, Exhausted, Stage, without_exhausted

from .counts import counts_at
from .exhaustion import limits_of
from .weights import largest_remainders, worst_deviation

DELAY_STEPS_MAX = 50
"""Beyond this delay of a stage, smaller blocks are offered."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """A stage from the first sample of a forecast on.

    asked: where it was asked for, and the weights of all sources.  proportions: what these weights
    were made from, integers in any unit; None if that is not known.  index: of all stages.
    first_sample: where it begins.  samples: of each source up to the end of the forecast; all 0 if
    the stage is not reached.
    """

    asked: AskedStage
    proportions: tuple[int, ...] | None
    index: int
    first_sample: int
    samples: tuple[int, ...]

    @property
    def delay_samples(self) -> int:
        """From the sample that it was asked for to the block border where it begins."""
        return self.first_sample - self.asked.first_sample

    @property
    def block_size(self) -> int:
        """Samples of a block."""
        return sum(self.asked.weights)

    def asked_shares(self) -> tuple[Fraction | None, ...]:
        """Return the shares of all sources that were asked for; None if they are not known."""
        if self.proportions is None:
            return (None,) * len(self.samples)
        total = sum(self.proportions)
        return tuple(Fraction(part, total) for part in self.proportions)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The samples of a mixture in [first_sample, end_sample).

    spec: the mixture.  rows: of each source, None if its order has no epochs.  asked_end_sample:
    up to where it was asked for; end_sample is less if a source is exhausted before.  stages: those
    that have not ended by first_sample.  samples: of each source in all of them.  before: the same
    before first_sample.  exhausted: where sources end before asked_end_sample if the mixture goes
    on without each of them; it ends at the first one.  asked: all stages.  going_on: those of the
    mixture that goes on.  going_on_end: where that one ends too; None if it does not.
    """

    spec: StreamSpec
    rows: tuple[int | None, ...]
    first_sample: int
    end_sample: int
    asked_end_sample: int
    stages: tuple[StageForecast, ...]
    samples: tuple[int, ...]
    before: tuple[int, ...]
    exhausted: tuple[Exhausted, ...]
    asked: tuple[AskedStage, ...]
    going_on: tuple[AskedStage, ...]
    going_on_end: int | None

    def epochs(self, source: int, samples: int) -> Fraction | None:
        """Return samples of a source as epochs of it; None if its order has none."""
        rows = self.rows[source]
        return None if rows is None else Fraction(samples, rows)


def forecast(
    spec: StreamSpec,
    asked: Sequence[AskedStage],
    rows: Sequence[int],
    *,
    first_sample: int,
    end_sample: int,
    max_epochs: Mapping[str, int],
    proportions: Sequence[tuple[int, ...] | None] | None = None,
) -> Forecast:
    """Return what a mixture does in [first_sample, end_sample), end_sample at most 2^63.

    asked: its stages, with the weights of all sources.  rows: of each source.  max_epochs: by the
    names of datasets.  proportions: of each stage, as in StageForecast.
    Raises: InvalidRequest, as `limits_of`.
    """
    assert spec.mixture is not None
    limits = limits_of(spec, max_epochs, rows, first_sample)
    going_on = without_exhausted(asked, limits, end_sample, first_sample)
    end = min([end_sample, *(one.sample for one in going_on.exhausted[:1])])
    end = max(end, first_sample)
    stages = spec.mixture.stages
    current = spec.mixture.stage_of(min(first_sample, end_sample - 1))
    parts = [
        StageForecast(
            asked[index],
            proportions[index] if proportions else None,
            index,
            stages[index].first_sample,
            _samples(stages[index], spec, (first_sample, end)),
        )
        for index in range(current, len(stages))
    ]
    return Forecast(
        spec=spec,
        rows=tuple(
            count if source.order.HAS_EPOCHS else None
            for source, count in zip(spec.sources, rows, strict=True)
        ),
        first_sample=first_sample,
        end_sample=end,
        asked_end_sample=end_sample,
        stages=tuple(parts),
        samples=tuple(map(sum, zip(*(part.samples for part in parts), strict=True))),
        before=counts_at(stages[current], spec.seed, first_sample),
        exhausted=going_on.exhausted,
        asked=tuple(asked),
        going_on=going_on.asked,
        going_on_end=going_on.end_sample,
    )


def _samples(stage: Stage, spec: StreamSpec, samples: tuple[int, int]) -> tuple[int, ...]:
    """Return the samples of each source that a stage has in [samples[0], samples[1])."""
    assert spec.mixture is not None
    first, end = max(samples[0], stage.first_sample), samples[1]
    stage_end = spec.mixture.end_of(stage.index)
    if stage_end is not None:
        end = min(end, stage_end)
    if end <= first:
        return (0,) * len(stage.weights)
    before, after = (counts_at(stage, spec.seed, sample) for sample in (first, end))
    return tuple(later - earlier for earlier, later in zip(before, after, strict=True))


class SmallerBlocks(NamedTuple):
    """Blocks by which every stage begins less than DELAY_STEPS_MAX steps late.

    block: their maximum number of samples.  stage, source: whose share is off the most then.
    asked_share, share: what was asked for, and what it would be; 0 if these blocks are too small
    for the source.  deviation: of the share, relative to what was asked for.
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
    if all(stage.delay_samples <= block for stage in stages):
        return None
    return max(
        (_with_blocks(stage, block) for stage in stages if stage.block_size > block),
        key=lambda found: found.deviation,
    )


def _with_blocks(stage: StageForecast, block: int) -> SmallerBlocks:
    assert stage.proportions is not None
    asked = {str(number): part for number, part in enumerate(stage.proportions)}
    counts = largest_remainders(asked, block)
    name, deviation = worst_deviation(asked, counts)
    asked_share = Fraction(asked[name], sum(stage.proportions))
    share = Fraction(counts[name], block)
    return SmallerBlocks(block, stage.index, int(name), asked_share, share, deviation)
