"""Where the stages of a stream begin, and with which samples of each source. Pure arithmetic.

A stage is asked for at a sample and begins at the first end of a block from there on: only there a
source's own samples have no gap. docs/protocol.md, Streams, has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import InvalidRequest
from .position import SAMPLE_END
from .stage import DEFINED, FIRST_PREVIOUS, Share, Stage


def first_stage(context_length: int, weights: Mapping[int, int]) -> Stage:
    """Return stage 0.

    context_length: T, at least 1.  weights: samples of each source in a block, by its number.
    Raises: InvalidRequest, naming the field and its limit.
    """
    return Stage(0, 0, context_length, _shares({}, weights), FIRST_PREVIOUS)


def next_stage(last: Stage, asked: int, weights: Mapping[int, int], origin: int = DEFINED) -> Stage:
    """Return the stage with other weights that is asked for at a sample.

    last: the stage before it, whose whole blocks come first.  asked: above last.first_sample.
    weights: as of `first_stage`; sources that are missing pause.  origin: who asked (stage.py).
    Raises: InvalidRequest; SamplesExhausted if it would begin at or above sample 2^63.
    """
    blocks = last.blocks_before(asked)
    bases = {share.source: share.base + blocks * share.weight for share in last.shares}
    return Stage(
        last.index + 1,
        last.first_sample + blocks * last.block_size,
        last.context_length,
        _shares(bases, weights),
        asked=asked,
        origin=origin,
    )


def planned_stage(
    context_length: int, asked: int, weights: Mapping[int, int], origin: int = DEFINED
) -> Stage:
    """Return a stage as it is asked for, for `scheduled`: where it begins is not known yet."""
    shares = _shares({}, weights)
    return Stage(0, asked, context_length, shares, asked=asked, origin=origin)


def scheduled(begun: Sequence[Stage], later: Iterable[Stage] = ()) -> tuple[Stage, ...]:
    """Return stages, each with the sample where it really begins.

    begun: at least one; they stay as they are.  later: in order; placed by `asked`, weights and
    `origin`. As long as they come out as they were, they keep their `previous`; from the first
    other one on it is b"".
    Raises: InvalidRequest if a stage would begin at or before the one before it; SamplesExhausted
    if one begins at or above sample 2^63.
    """
    found = list(begun)
    are_known = True  # whether all stages so far are what they were
    for stage in later:
        last = found[-1]
        if stage.asked <= last.first_sample:
            raise InvalidRequest(
                f"stages[{last.index + 1}].first_sample",
                f"{stage.asked} is not above {last.first_sample}, where the one before it begins",
            )
        placed = next_stage(last, stage.asked, stage.weights, stage.origin)
        # Where nothing has changed, what is known of it is kept. Behind another stage it may begin
        # at the same sample, with the same bases, and yet follows another identity.
        are_known = are_known and placed == replace(stage, previous=b"")
        found.append(stage if are_known else placed)
    return tuple(found)


def _shares(bases: Mapping[int, int], weights: Mapping[int, int]) -> tuple[Share, ...]:
    """Return the shares of all sources that have or had a weight.  bases: of those that had one."""
    return tuple(
        Share(number, weights.get(number, 0), bases.get(number, 0))
        for number in sorted({*bases, *weights})
    )


class Exhausted(NamedTuple):
    """Where a source ends: its epochs are used up.

    sample: first sample of the first block that the source cannot fill.  stage: index of that
    block's stage.  source: number of the source.  source_samples: that the source has contributed
    by then.
    """

    sample: int
    stage: int
    source: int
    source_samples: int


def first_exhausted(
    stages: Sequence[Stage], limits: Mapping[int, int], sample: int = 0
) -> Exhausted | None:
    """Return where the first source ends, None if none does.

    limits: samples that sources may contribute, by their numbers; others are endless.  sample:
    stages that end before it do not count.
    """
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        end = _first_end(stage, limits)
        end_sample = SAMPLE_END if following is None else following.first_sample
        if sample < end_sample and end is not None and end.sample < end_sample:
            return end
    return None


def _first_end(stage: Stage, limits: Mapping[int, int]) -> Exhausted | None:
    """Return where the first source of a stage ends if no other stage follows."""
    ends = (
        _end_of(stage, share, limits[share.source])
        for share in stage.active
        if share.source in limits
    )
    return min(ends, default=None)


def _end_of(stage: Stage, share: Share, limit: int) -> Exhausted:
    blocks = max(0, limit - share.base) // share.weight
    return Exhausted(
        stage.first_sample + blocks * stage.block_size,
        stage.index,
        share.source,
        share.base + blocks * share.weight,
    )


class WithoutExhausted(NamedTuple):
    """A mixture that goes on without each source that is exhausted.

    stages: its stages.  exhausted: where each source ends that does, in the order in which they
    leave.  end_sample: where the last source of a stage ends, and the mixture with it; None if it
    never does.
    """

    stages: tuple[Stage, ...]
    exhausted: tuple[Exhausted, ...]
    end_sample: int | None


def without_exhausted(
    stages: Sequence[Stage],
    limits: Mapping[int, int],
    end_sample: int = SAMPLE_END,
    sample: int = 0,
) -> WithoutExhausted:
    """Return the stages that go on without each source from the block on that it cannot fill. A
    later stage without any other source is left out.

    limits, sample: as for `first_exhausted`; nothing changes before the sample.  end_sample:
    sources that end from there on are left in.
    Raises: like `scheduled`.
    """
    begun, ends = [stages[0]], list[Exhausted]()

    def put(asked: int, weights: Mapping[int, int], origin: int) -> None:
        last = begun[-1]
        if asked > last.first_sample:
            begun.append(next_stage(last, asked, weights, origin))
        else:
            # Blocks have other sizes now, and the last stage has none left.
            bases = {share.source: share.base for share in last.shares}
            begun[-1] = replace(last, shares=_shares(bases, weights))

    index = stages[0].index
    for stage in (*stages[1:], None):
        while True:
            last, until = begun[-1], end_sample
            if stage is not None:
                blocks = last.blocks_before(stage.asked)
                until = min(until, last.first_sample + blocks * last.block_size)
            end = _first_end(last, limits)
            if until <= sample or end is None or end.sample >= until:
                break
            ends.append(end._replace(stage=index))
            rest = _without(ends, last)
            if not rest:
                return WithoutExhausted(tuple(begun), tuple(ends), end.sample)
            put(max(end.sample, sample), rest, last.origin)
        if stage is not None and (rest := _without(ends, stage)):
            put(stage.asked, rest, stage.origin)
            index = stage.index
    return WithoutExhausted(tuple(begun), tuple(ends), None)


def _without(ends: Sequence[Exhausted], stage: Stage) -> dict[int, int]:
    gone = {end.source for end in ends}
    return {number: weight for number, weight in stage.weights.items() if number not in gone}
