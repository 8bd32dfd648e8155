"""What a mixture will do, compared with a second implementation that counts sample by sample."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import InvalidRequest
from tests.support import reference
from tests.support.stages import SEEDS, AskedStage, asked_stages, stages_of
from tokenfeed.client.feed.mixture.samples_per_block import proportions, samples_per_block
from tokenfeed.commands.prices import Prices
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stage import FIRST_PREVIOUS, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.tools.plan.forecast import (
    Forecast,
    forecast,
    smaller_blocks,
)
from tokenfeed.tools.plan.report import Report

T = 8


def planned(
    asked: list[AskedStage],
    rows: list[int],
    *,
    first_sample: int = 0,
    end_sample: int,
    max_epochs: dict[str, int] | None = None,
    seed: int = 0,
    proportions: dict[int, dict[int, int]] | None = None,
) -> Forecast:
    """The forecast of a mixture of the sources "0", "1", ..."""
    order = orders.latest("shuffled")
    sources = tuple(Source(str(number), order, seed, number) for number in range(len(rows)))
    return forecast(
        Stream(seed, sources, stages_of(asked, T)),
        dict(enumerate(rows)),
        first_sample=first_sample,
        end_sample=end_sample,
        max_epochs=max_epochs or {},
        proportions=proportions,
    )


def listed(asked: list[AskedStage]) -> list[tuple[int, list[int]]]:
    return [(stage.first_sample, list(stage.weights)) for stage in asked]


@given(asked_stages(), SEEDS, st.integers(0, 200), st.integers(1, 200))
def test_the_samples_of_each_source_are_those_that_are_read(
    asked: list[AskedStage], seed: int, first_sample: int, count: int
) -> None:
    """In each stage, from any sample on, also where the plan begins or ends within a block."""
    sources = len(asked[0].weights)
    end_sample = first_sample + count

    found = planned(
        asked, [10] * sources, first_sample=first_sample, end_sample=end_sample, seed=seed
    )

    begins = [stage.first_sample for stage in reference.stages(listed(asked))]
    read: Counter[tuple[int, int]] = Counter()
    for sample in range(first_sample, end_sample):
        source, _ = reference.mixture_place(seed, listed(asked), sample)
        read[max(i for i, begin in enumerate(begins) if begin <= sample), source] += 1
    for each in found.stages:
        index = each.stage.index
        counts = [read.pop((index, n), 0) for n in range(sources)]
        assert [each.samples.get(n, 0) for n in range(sources)] == counts
        assert each.stage.first_sample == begins[index]
        assert each.delay_samples == begins[index] - asked[index].first_sample
    assert not read
    assert sum(found.samples.values()) == count
    all_read = [reference.mixture_place(seed, listed(asked), s)[0] for s in range(end_sample)]
    assert found.at_end == {n: Fraction(all_read.count(n), 10) for n in range(sources)}


@given(
    asked_stages(),
    st.lists(st.integers(12, 60), min_size=5, max_size=5),
    st.lists(st.integers(1, 3), min_size=5, max_size=5),
    st.sets(st.integers(0, 4)),
)
def test_a_plan_ends_before_the_first_block_that_a_source_cannot_fill(
    asked: list[AskedStage], rows: list[int], epochs: list[int], ending: set[int]
) -> None:
    """Found by going from block to block."""
    sources = len(asked[0].weights)
    limits = {n: rows[n] * epochs[n] for n in sorted(ending) if n < sources}

    found = planned(
        asked,
        rows[:sources],
        end_sample=500,
        max_epochs={str(number): epochs[number] for number in limits},
    )

    expected = _end_by_blocks(listed(asked), limits, 500)
    assert found.end_sample == expected
    assert [end.sample for end in found.exhausted[:1]] == ([expected] if expected < 500 else [])
    for number, limit in limits.items():
        assert found.samples[number] <= limit


def _end_by_blocks(
    asked: list[tuple[int, list[int]]], limits: dict[int, int], end_sample: int
) -> int:
    stages = reference.stages(asked)
    given = [0] * len(asked[0][1])
    sample = 0
    while sample < end_sample:
        stage = max((one for one in stages if one.first_sample <= sample), key=lambda s: s[0])
        given = [had + weight for had, weight in zip(given, stage.weights, strict=True)]
        if any(given[n] > limit and stage.weights[n] for n, limit in limits.items()):
            return sample
        sample += sum(stage.weights)
    return end_sample


def test_a_plan_up_to_the_last_sample_there_is_is_exact() -> None:
    """No float64 has these numbers."""
    asked = [AskedStage(0, (2, 1)), AskedStage(2**62, (0, 7))]

    found = planned(asked, [10**9, 10**9], end_sample=SAMPLE_END)

    begin = -(-(2**62) // 3) * 3
    assert [stage.samples for stage in found.stages] == [
        {0: begin // 3 * 2, 1: begin // 3},
        {1: SAMPLE_END - begin},
    ]
    assert found.epochs(0, found.tokens[0]) == Fraction(begin // 3 * 2, 10**9)


def test_a_source_that_cannot_fill_the_first_block_is_refused_as_by_a_feed() -> None:
    with pytest.raises(InvalidRequest, match=re.escape("sources.0.max_epochs: is 2, which are 8")):
        planned([AskedStage(0, (9, 1))], [4, 4], end_sample=100, max_epochs={"0": 2})


def test_smaller_blocks_are_offered_with_what_they_cost() -> None:
    """A share of 0.017 % takes blocks of 100,000 samples: the next stage begins up to that late."""
    shares = {"0": 0.99983, "1": 0.00017}
    weights, parts = samples_per_block(shares), proportions(shares)
    asked = [AskedStage(0, tuple(weights.values())), AskedStage(1, (1, 1))]

    given = {0: dict(enumerate(parts.values())), 1: {0: 1, 1: 1}}
    found = planned(asked, [9, 9], end_sample=10**6, proportions=given)

    assert found.stages[1].delay_samples == 99_999
    assert found.stages[0].asked_share(1) == Fraction(17, 100_000)
    offer = smaller_blocks(found.stages, 200)
    assert offer is not None
    assert (offer.block, offer.stage, offer.source) == (10_000, 0, 1)
    assert (offer.asked_share, offer.share) == (Fraction(17, 100_000), Fraction(2, 10_000))
    assert offer.deviation == Fraction(3, 17)
    assert samples_per_block(shares, offer.block) == {"0": 9_998, "1": 2}
    assert smaller_blocks(found.stages, 2000) is None
    too_small = smaller_blocks(found.stages, 2)
    assert too_small is not None
    assert (too_small.block, too_small.share, too_small.deviation) == (100, 0, 1)


def test_a_trillion_tokens_in_a_thousand_stages_of_a_hundred_sources_are_planned_at_once() -> None:
    """Within the time limit of a test: samples are not counted one by one."""
    asked = [
        AskedStage(k * 10**6, tuple((k * n) % 97 + 1 for n in range(100))) for k in range(1000)
    ]

    found = planned(
        asked,
        [10**6] * 100,
        end_sample=10**12,
        max_epochs={str(number): 1 + number % 20 for number in range(90)},
    )

    assert len(found.exhausted) == 90


def stream_of_lengths(*stages: tuple[int, int]) -> Stream:
    """A stream over one dataset whose context length changes: where each begins, and its length."""
    source = Source("0", orders.latest("shuffled"), 0)
    return Stream(
        0,
        (source,),
        tuple(
            Stage(index, first, length, (Share(0, 1, 0),), b"" if index else FIRST_PREVIOUS)
            for index, (first, length) in enumerate(stages)
        ),
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_tokens_are_counted_in_the_context_length_of_each_stage(
    stages: list[tuple[int, int]],
) -> None:
    """A run that went on with longer rows has fewer tokens than its samples say."""
    begins = [sum(count for count, _ in stages[:index]) for index in range(len(stages))]
    lengths = [length for _, length in stages]
    stream = stream_of_lengths(*zip(begins, lengths, strict=True))
    sizes = [length for count, length in stages for _ in range(count)] + [lengths[-1]] * 5

    for sample in range(len(sizes)):
        assert stream.tokens_before(sample) == sum(sizes[:sample])
    for tokens in range(sum(sizes) + 1):
        assert stream.sample_at(tokens) == next(
            sample for sample in range(len(sizes) + 1) if sum(sizes[:sample]) >= tokens
        )


def test_a_source_is_exhausted_in_the_stage_of_that_index() -> None:
    """Also of a state that has dropped its oldest stages."""
    stages = stages_of([AskedStage(0, (1, 1)), AskedStage(10, (1, 0)), AskedStage(20, (1, 3))], T)
    order = orders.latest("shuffled")
    sources = tuple(Source(str(number), order, 0, number) for number in range(2))
    known = [Stream(0, sources, each) for each in (stages, stages[1:])]

    found = [
        forecast(each, {0: 99, 1: 11}, first_sample=12, end_sample=90, max_epochs={"1": 1})
        for each in known
    ]

    assert [[end.stage for end in each.exhausted] for each in found] == [[2], [2]]
    assert [each.end_sample for each in found] == [28, 28]


def test_the_steps_by_which_a_longer_context_is_late_have_the_tokens_of_the_first_ones() -> None:
    """A step keeps its tokens, so its rows are fewer behind each change; a length that is not
    reached is not promised.
    """
    stages = (
        Stage(0, 0, 8, (Share(0, 1, 0),)),
        Stage(1, 100, 16, (Share(0, 1, 50),), asked=40),
        Stage(2, 200, 32, (Share(0, 1, 75),), asked=110),
    )
    source = Source("web", orders.latest("random"), 0)
    found = forecast(
        Stream(0, (source,), stages), {0: 1000}, first_sample=0, end_sample=150, max_epochs={}
    )
    report = Report(found, {}, 0, 10, None, 0, {0: Fraction(1)}, {}, Prices())

    assert [stage["delay_steps"] for stage in report.plain()["stages"]] == [0, 6, 18]
    assert report.text().splitlines()[0].endswith("8, then 16 tokens a sample")
