"""Where stages begin, with which samples of each source, and where a source is exhausted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tests.support.stages import AskedStage, asked_stages, stages_of
from tokenfeed.errors import InvalidRequest, RequestError, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.stream.schedule import (
    Exhausted,
    first_exhausted,
    first_stage,
    next_stage,
    planned_stage,
    scheduled,
    without_exhausted,
)
from tokenfeed.stream.stage import (
    CHANGED,
    FIRST_PREVIOUS,
    RESUMED,
    Corpus,
    Share,
    Source,
    Stage,
)
from tokenfeed.stream.stream import Stream

T = 8
HALVES = first_stage(T, {0: 5, 1: 5})
CORPORA = {number: Corpus(bytes([number] * 32)) for number in range(3)}


def known(*stages: Stage) -> tuple[Stage, ...]:
    """The stages of a stream of three sources that is known."""
    sources = tuple(Source("", orders.find(""), 1, number) for number in range(3))
    return Stream(7, sources, stages).known(CORPORA).stages


def listed(stage: Stage) -> tuple[int, dict[int, tuple[int, int]]]:
    """Where it begins, and weight and base of each source."""
    return stage.first_sample, {number: (weight, base) for number, weight, base in stage.shares}


def test_the_first_stage_begins_at_sample_0_with_the_first_sample_of_each_source() -> None:
    """Sources have their weights by number, in ascending order."""
    stage = first_stage(T, {3: 1, 0: 2})

    assert stage == Stage(0, 0, T, (Share(0, 2, 0), Share(3, 1, 0)), FIRST_PREVIOUS)


@pytest.mark.parametrize(
    ("asked", "begin", "bases"), [(1, 10, (5, 5)), (10, 10, (5, 5)), (11, 20, (10, 10))]
)
def test_a_stage_begins_at_the_first_end_of_a_block_from_the_asked_sample_on(
    asked: int, begin: int, bases: tuple[int, int]
) -> None:
    """Cut blocks would leave gaps in a source, or change the past."""
    later = next_stage(HALVES, asked, {0: 1}, CHANGED)

    assert (later.index, later.context_length, later.previous) == (1, T, b"")
    assert listed(later) == (begin, {0: (1, bases[0]), 1: (0, bases[1])})
    assert (later.asked, later.origin) == (asked, CHANGED)


def test_a_source_may_come_later_and_pause() -> None:
    """It goes on where it was."""
    first = first_stage(T, {0: 3})
    second = next_stage(first, 3, {1: 1})
    third = next_stage(second, 6, {0: 1, 1: 1})

    assert listed(second) == (3, {0: (0, 3), 1: (1, 0)})
    assert listed(third) == (6, {0: (1, 3), 1: (1, 3)})


def test_a_stage_goes_on_from_the_base_that_the_one_before_it_was_given() -> None:
    """A base is counted in rows of its stage, so it may be above the stage's first sample."""
    given = Stage(4, 100, T, (Share(0, 2, 800), Share(1, 0, 7)))

    later = next_stage(given, 105, {0: 1, 1: 1})

    assert later.index == 5
    assert listed(later) == (106, {0: (1, 806), 1: (1, 7)})


@given(asked_stages())
def test_stages_begin_where_the_second_implementation_has_them(asked: list[AskedStage]) -> None:
    """Which steps from block to block."""
    found = stages_of(asked)

    expected = reference.stages([(sample, list(weights)) for sample, weights in asked])
    assert [stage.first_sample for stage in found] == [stage.first_sample for stage in expected]
    assert [[share.base for share in stage.shares] for stage in found] == [
        stage.bases for stage in expected
    ]


@given(asked_stages())
def test_planned_stages_are_scheduled_one_behind_the_other(asked: list[AskedStage]) -> None:
    """A definition says what is asked for; where it begins follows."""
    later = [
        planned_stage(T, sample, dict(enumerate(weights)), RESUMED) for sample, weights in asked
    ][1:]
    begun = stages_of(asked[:1], T)

    found = scheduled(begun, later)

    assert found == stages_of(asked, T)
    assert [(stage.asked, stage.origin) for stage in found[1:]] == [
        (sample, RESUMED) for sample, _ in asked[1:]
    ]
    assert scheduled(begun) == begun


@pytest.mark.parametrize(
    ("asked", "kind", "problem"),
    [
        ([0], InvalidRequest, "stages[1].first_sample: 0 is not above 0, where the one before"),
        (
            [1, 10],
            InvalidRequest,
            "stages[2].first_sample: 10 is not above 10, where the one before it begins",
        ),
        (
            [2**63 - 1],
            SamplesExhausted,
            "stage.first_sample: 9223372036854775810 is not in [0, 2^63)",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(
    asked: list[int], kind: type[RequestError], problem: str
) -> None:
    """Two stages at one place would make one of them a lie."""
    later = [planned_stage(T, sample, {0: 1, 1: 1}) for sample in asked]

    with pytest.raises(kind, match=re.escape(problem)):
        scheduled([HALVES], later)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({0: 0, 1: 0}, "weight: the sum of all sources, 0, is not in [1, 1048576]"),
        ({0: 2**20, 1: 1}, "weight: the sum of all sources, 1048577, is not in [1, 1048576]"),
        ({0: 2, 1: -1}, "weight: -1 is not in [0, 1048576]"),
        ({}, "weight: the sum of all sources, 0, is not in [1, 1048576]"),
    ],
)
def test_weights_that_make_no_block_are_refused(weights: dict[int, int], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        first_stage(T, weights)
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        next_stage(HALVES, 10, weights)


def test_a_stage_behind_one_that_has_changed_is_not_known_any_more() -> None:
    """Although it may begin at the same sample, with the same bases: what came before is another
    stream, and its identity says so.
    """
    first = first_stage(T, {0: 1})
    doubled = next_stage(first, 10, {0: 2, 1: 2})
    stages = known(first, doubled, next_stage(doubled, 18, {0: 1}))
    halved = planned_stage(T, 10, {0: 1, 1: 1})

    found = scheduled(stages[:1], [halved, stages[2]])

    assert found[0] is stages[0]
    assert found[2] == replace(stages[2], previous=b"")
    assert known(*found)[2].previous != stages[2].previous


# Where a source is exhausted.


def test_a_source_ends_before_the_block_that_it_cannot_fill() -> None:
    """Epochs are counted across stages."""
    stages = (HALVES, next_stage(HALVES, 20, {0: 2, 1: 1}))

    assert first_exhausted(stages, {}) is None
    assert first_exhausted(stages, {1: 5}) == Exhausted(10, 0, 1, 5)
    assert first_exhausted(stages, {1: 9}) == (10, 0, 1, 5)
    assert first_exhausted(stages, {1: 10}) == (20, 1, 1, 10)
    assert first_exhausted(stages, {0: 15, 1: 11}) == (23, 1, 1, 11)
    assert first_exhausted(stages, {0: 13, 1: 11}) == (23, 1, 0, 12)
    assert first_exhausted(stages, {0: 0}) == (0, 0, 0, 0)


def test_stages_before_a_sample_do_not_count() -> None:
    """A run that resumes behind an end has gone on without the source already."""
    stages = (HALVES, next_stage(HALVES, 20, {0: 1}))

    assert first_exhausted(stages, {1: 5}, 19) == (10, 0, 1, 5)
    assert first_exhausted(stages, {1: 5}, 20) is None


def test_a_paused_source_is_not_exhausted() -> None:
    stages = (HALVES, next_stage(HALVES, 20, {0: 1}))

    assert first_exhausted(stages, {1: 10}) is None


def test_a_source_counts_from_the_base_of_its_stage() -> None:
    """Which may be above what the stages that are kept have given."""
    stage = Stage(3, 100, T, (Share(0, 2, 40), Share(1, 1, 3)))

    assert first_exhausted([stage], {0: 45}) == (106, 3, 0, 44)
    assert first_exhausted([stage], {0: 39}) == (100, 3, 0, 40)


@given(asked_stages(), st.lists(st.none() | st.integers(0, 60), min_size=5, max_size=5))
def test_the_stages_that_go_on_without_it_use_no_source_beyond_its_end(
    asked: list[AskedStage], drawn: list[int | None]
) -> None:
    """And change nothing before."""
    count = len(asked[0].weights)
    limits = {n: limit for n, limit in enumerate(drawn[:count]) if limit is not None}
    stages = stages_of(asked)
    first = first_exhausted(stages, limits)

    found, exhausted, end = without_exhausted(stages, limits)

    last = first_exhausted(found, limits)
    assert (last is None) == (end is None)
    if last is not None:
        assert last.sample == end
        assert first is not None
        assert first.sample <= last.sample
        active = {share.source for share in found[last.stage].active}
        assert active <= set(limits)
    assert exhausted[:1] == (() if first is None else (first,))
    assert [one.sample for one in exhausted] == sorted(one.sample for one in exhausted)
    if first is None:
        assert found == stages
    else:
        assert found[: first.stage] == stages[: first.stage]
        kept, begun = found[first.stage], stages[first.stage]
        assert kept.first_sample == begun.first_sample
        assert [share.base for share in kept.shares] == [share.base for share in begun.shares]


def test_going_on_without_a_source_keeps_the_stages_before() -> None:
    stages = (HALVES, next_stage(HALVES, 40, {0: 1, 1: 9}))

    going_on = without_exhausted(stages, {0: 12})

    assert going_on.exhausted == ((20, 0, 0, 10),)
    assert going_on.end_sample is None
    assert going_on.stages[0] == HALVES
    assert [listed(stage) for stage in going_on.stages[1:]] == [
        (20, {0: (0, 10), 1: (5, 10)}),
        (40, {0: (0, 10), 1: (9, 30)}),
    ]
    assert without_exhausted(stages, {0: 12}, 20).exhausted == ()


def test_a_stage_of_nothing_but_an_exhausted_source_is_left_out() -> None:
    """Also if the stage before it would have no block left: blocks have other sizes now."""
    asked = [AskedStage(0, (3, 4)), AskedStage(14, (5, 2)), AskedStage(15, (1, 0))]

    going_on = without_exhausted(stages_of(asked), {0: 3})

    assert [listed(stage) for stage in going_on.stages] == [
        (0, {0: (3, 0), 1: (4, 0)}),
        (7, {0: (0, 3), 1: (4, 4)}),
        (15, {0: (0, 3), 1: (2, 12)}),
    ]
    assert going_on[1:] == (((7, 0, 0, 3),), None)


def test_all_sources_may_end() -> None:
    going_on = without_exhausted([HALVES], {0: 12, 1: 25})

    assert [listed(stage) for stage in going_on.stages] == [
        (0, {0: (5, 0), 1: (5, 0)}),
        (20, {0: (0, 10), 1: (5, 10)}),
    ]
    assert [(end.source, end.sample) for end in going_on.exhausted] == [(0, 20), (1, 35)]
    assert going_on.end_sample == 35
