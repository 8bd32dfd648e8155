"""The stages of a mixture: how many samples of each source a block has, from which sample on.

Pure arithmetic. docs/protocol.md, Orders, has the formulas. A source's own samples follow from
the sample index alone: a later stage changes nothing before it, and every source continues where it
was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import InvalidRequest, SamplesExhausted
from .position import SAMPLE_END, require_range

MIXTURE = "mixture-1"
"""Name of the order of a mixture; sampling/mixture.py is its algorithm."""
BLOCK_MAX = 1 << 20
"""Maximum number of samples in a block: the sum of the weights of a stage."""
STAGE_END = 1 << 32
DEFINED, CHANGED, RESUMED = 0, 1, 2
"""Who asked for a stage: the definition of the mixture, or a change of a running feed. RESUMED,
which may be added to CHANGED: from there on a feed of another definition has continued.
"""
_HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class Stage:
    """The proportions of the sources from a sample on. Always valid once constructed.

    index: in [0, 2^32).  first_sample: where it begins, in [0, 2^63).  weights: samples of each
    source in a block; 0 pauses a source.  bases: samples of each source before the stage, all
    together at most first_sample.  previous: H(index) of the chain of identities, 32 bytes; b"" if
    it is not known yet.  origin, asked: who asked for it, and at which sample, for saved states.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """

    index: int
    first_sample: int
    weights: tuple[int, ...]
    bases: tuple[int, ...]
    previous: bytes = b""
    origin: int = field(default=DEFINED, compare=False)
    asked: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Check every range."""
        require_range("stage.index", self.index, 0, STAGE_END)
        if not 0 <= self.first_sample < SAMPLE_END:
            raise SamplesExhausted("stage.first_sample", f"{self.first_sample} is not in [0, 2^63)")
        if self.previous and len(self.previous) != _HASH_BYTES:
            raise InvalidRequest(
                "previous_identity",
                f"has {len(self.previous)} bytes; it has to have {_HASH_BYTES}",
            )
        for weight in self.weights:
            require_range("weight", weight, 0, BLOCK_MAX + 1)
        if not 1 <= self.block_size <= BLOCK_MAX:
            raise InvalidRequest(
                "weight", f"the sum of all sources, {self.block_size}, is not in [1, {BLOCK_MAX}]"
            )
        for base in self.bases:
            if not 0 <= base < SAMPLE_END:
                raise SamplesExhausted("base", f"{base} is not in [0, 2^63)")
        if sum(self.bases) > self.first_sample:
            raise InvalidRequest(
                "base",
                f"the sum of all sources, {sum(self.bases)}, is above stage.first_sample, "
                f"{self.first_sample}",
            )

    @property
    def block_size(self) -> int:
        """Samples of a block."""
        return sum(self.weights)

    def blocks_before(self, sample: int) -> int:
        """Return the blocks that it takes to reach a sample: whole ones, and one that is begun."""
        return -(-(sample - self.first_sample) // self.block_size)


class AskedStage(NamedTuple):
    """A stage as it was asked for.

    first_sample: from which sample on; it begins at the first block border from there on.  weights:
    of each source, in the order of the sources; sources that are missing at the end have 0.
    origin: who asked for it.
    """

    first_sample: int
    weights: tuple[int, ...]
    origin: int = DEFINED


def scheduled(asked: Iterable[AskedStage], source_count: int) -> tuple[Stage, ...]:
    """Return the stages, each with the sample where it really begins.

    asked: in order, the first one at sample 0.  source_count: of all stages together.
    Raises: InvalidRequest if a stage would begin at or before the one before it; SamplesExhausted
    if one begins at or above sample 2^63.
    """
    stages: list[Stage] = []
    for index, stage in enumerate(asked):
        first_sample = stage.first_sample
        stage = stage._replace(weights=stage.weights + (0,) * (source_count - len(stage.weights)))
        if not stages:
            if first_sample:
                problem = f"{first_sample} is not 0, where the first stage has to begin"
                raise InvalidRequest("stages[0].first_sample", problem)
            stages.append(Stage(0, 0, stage.weights, (0,) * source_count, origin=stage.origin))
            continue
        last = stages[-1]
        if first_sample <= last.first_sample:
            raise InvalidRequest(
                f"stages[{index}].first_sample",
                f"{first_sample} is not above {last.first_sample}, where the one before it begins",
            )
        stages.append(_following(last, stage))
    if not stages:
        raise InvalidRequest("stages", "are missing; a mixture has at least one")
    return tuple(stages)


def _following(last: Stage, asked: AskedStage) -> Stage:
    """Return the stage that is asked for at a sample above the begin of the last one."""
    blocks = last.blocks_before(asked.first_sample)
    return Stage(
        last.index + 1,
        last.first_sample + blocks * last.block_size,
        asked.weights,
        tuple(
            base + blocks * weight for base, weight in zip(last.bases, last.weights, strict=True)
        ),
        origin=asked.origin,
        asked=asked.first_sample,
    )


class Exhausted(NamedTuple):
    """Where a source ends: its epochs are used up.

    sample: first sample of the first block that the source cannot fill.  stage: of that block.
    source: index of the source.  source_samples: that the source has contributed by then.
    """

    sample: int
    stage: int
    source: int
    source_samples: int


def first_exhausted(
    stages: Sequence[Stage], limits: Sequence[int | None], sample: int = 0
) -> Exhausted | None:
    """Return where the first source ends, None if none does.

    limits: samples that each source may contribute; None is endless.  sample: stages that end
    before it do not count.
    """
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        end = _first_end(stage, limits)
        end_sample = SAMPLE_END if following is None else following.first_sample
        if sample < end_sample and end is not None and end.sample < end_sample:
            return end
    return None


def _first_end(stage: Stage, limits: Sequence[int | None]) -> Exhausted | None:
    """Return where the first source of a stage ends if no other stage follows."""
    ends = (
        _end_of(stage, index, limit)
        for index, limit in enumerate(limits)
        if limit is not None and stage.weights[index]
    )
    return min(ends, default=None)


def _end_of(stage: Stage, source: int, limit: int) -> Exhausted:
    base, weight = stage.bases[source], stage.weights[source]
    blocks = max(0, limit - base) // weight
    return Exhausted(
        stage.first_sample + blocks * stage.block_size, stage.index, source, base + blocks * weight
    )


class GoingOn(NamedTuple):
    """A mixture that goes on without its exhausted sources.

    asked: its stages.  exhausted: where each of its sources ends, in order, and in which stage of
    the mixture with all sources.  end_sample: where the last source of a stage ends, and the
    mixture with it; None if it never does.
    """

    asked: tuple[AskedStage, ...]
    exhausted: tuple[Exhausted, ...]
    end_sample: int | None


def without_exhausted(
    asked: Sequence[AskedStage],
    limits: Sequence[int | None],
    end_sample: int = SAMPLE_END,
    sample: int = 0,
) -> GoingOn:
    """Return the stages that go on without each source from the block on that it cannot fill. A
    later stage without any other source is left out.

    limits, sample: as for `first_exhausted`; nothing changes before the sample.  end_sample:
    sources that end from there on are left in.
    Raises: like `scheduled`.
    """
    found = scheduled(asked, len(limits))
    asked = [stage._replace(weights=each.weights) for stage, each in zip(asked, found, strict=True)]
    going_on, begun = [asked[0]], [found[0]]
    ends: list[Exhausted] = []

    def put(stage: AskedStage) -> None:
        last = begun[-1]
        if stage.first_sample > last.first_sample:
            going_on.append(stage)
            begun.append(_following(last, stage))
        else:
            # Blocks have other sizes now, and the last stage has none left.
            going_on[-1] = stage._replace(first_sample=going_on[-1].first_sample)
            begun[-1] = replace(last, weights=stage.weights)

    number = 0
    for index, stage in enumerate((*asked[1:], None), 1):
        while True:
            last, until = begun[-1], end_sample
            if stage is not None:
                blocks = last.blocks_before(stage.first_sample)
                until = min(until, last.first_sample + blocks * last.block_size)
            end = _first_end(last, limits)
            if until <= sample or end is None or end.sample >= until:
                break
            rest = _without([*ends, end], AskedStage(max(end.sample, sample), last.weights))
            ends.append(end._replace(stage=number))
            if not any(rest.weights):
                return GoingOn(tuple(going_on), tuple(ends), end.sample)
            put(rest)
        if stage is not None and any(_without(ends, stage).weights):
            put(_without(ends, stage))
            number = index
    return GoingOn(tuple(going_on), tuple(ends), None)


def _without(ends: Sequence[Exhausted], stage: AskedStage) -> AskedStage:
    gone = {end.source for end in ends}
    weights = (0 if index in gone else weight for index, weight in enumerate(stage.weights))
    return stage._replace(weights=tuple(weights))
