"""Where stages of a mixture begin, and where a source is exhausted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenfeed.sampling.test_mixture import asked_stages
from tokenfeed.errors import InvalidRequest, RequestError
from tokenfeed.stream.stages import (
    AskedStage,
    Stage,
    first_exhausted,
    scheduled,
    without_exhausted,
)

HALVES = AskedStage(0, (5, 5))


@pytest.mark.parametrize(
    ("asked", "begin", "bases"), [(1, 10, (5, 5)), (10, 10, (5, 5)), (11, 20, (10, 10))]
)
def test_a_stage_begins_at_the_first_block_border_from_the_asked_sample_on(
    asked: int, begin: int, bases: tuple[int, int]
) -> None:
    """Cut blocks would leave gaps in a source, or change the past."""
    _, later = scheduled([HALVES, AskedStage(asked, (1, 0))], 2)

    assert (later.index, later.first_sample, later.bases) == (1, begin, bases)


def test_a_source_may_come_later_and_pause() -> None:
    """Weights that are missing at the end are 0."""
    stages = scheduled([AskedStage(0, (3,)), AskedStage(3, (0, 1)), AskedStage(6, (1, 1))], 2)

    assert [stage.weights for stage in stages] == [(3, 0), (0, 1), (1, 1)]
    assert [stage.bases for stage in stages] == [(0, 0), (3, 0), (3, 3)]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ([], "stages: are missing"),
        ([AskedStage(1, (1,))], "stages[0].first_sample: 1 is not 0"),
        ([HALVES, AskedStage(0, (1, 1))], "stages[1].first_sample: 0 is not above 0"),
        (
            [HALVES, AskedStage(1, (1, 1)), AskedStage(10, (1, 1))],
            "stages[2].first_sample: 10 is not above 10, where the one before it begins",
        ),
        ([AskedStage(0, (0, 0))], "weight: the sum of all sources, 0, is not in [1, 1048576]"),
        ([AskedStage(0, (2**20, 1))], "weight: the sum of all sources, 1048577, is not"),
        ([AskedStage(0, (2, -1))], "weight: -1 is not in [0, 1048576]"),
        ([HALVES, AskedStage(2**63 - 1, (1, 1))], "stage.first_sample: 9223372036854775810 is"),
    ],
)
def test_what_is_no_schedule_is_refused(asked: list[AskedStage], problem: str) -> None:
    """Two stages at one place would make one of them a lie."""
    with pytest.raises(RequestError, match=re.escape(problem)):
        scheduled(asked, 2)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"index": 2**32}, "stage.index: 4294967296 is not in"),
        ({"first_sample": 2**63}, "stage.first_sample: 9223372036854775808 is not in [0, 2^63)"),
        ({"bases": (-1,)}, "base: -1 is not in [0, 2^63)"),
        ({"bases": (10,)}, "base: the sum of all sources, 10, is above stage.first_sample, 9"),
        ({"previous": b"short"}, "previous_identity: has 5 bytes; it has to have 32"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, object], problem: str) -> None:
    """Requests of others are checked by it too."""
    values = {"index": 0, "first_sample": 9, "weights": (1,), "bases": (9,)} | fields
    with pytest.raises(RequestError, match=re.escape(problem)):
        Stage(**values)  # type: ignore[arg-type]


def test_a_source_ends_before_the_block_that_it_cannot_fill() -> None:
    """Epochs are counted across stages."""
    stages = scheduled([HALVES, AskedStage(20, (2, 1))], 2)

    assert first_exhausted(stages, [None, None]) is None
    assert first_exhausted(stages, [None, 5]) == (10, 0, 1, 5)
    assert first_exhausted(stages, [None, 9]) == (10, 0, 1, 5)
    assert first_exhausted(stages, [None, 10]) == (20, 1, 1, 10)
    assert first_exhausted(stages, [15, 11]) == (23, 1, 1, 11)
    assert first_exhausted(stages, [13, 11]) == (23, 1, 0, 12)
    assert first_exhausted(stages, [0, None]) == (0, 0, 0, 0)


def test_a_paused_source_is_not_exhausted() -> None:
    stages = scheduled([HALVES, AskedStage(20, (1, 0))], 2)

    assert first_exhausted(stages, [None, 10]) is None


@given(asked_stages(), st.lists(st.none() | st.integers(0, 60), min_size=5, max_size=5))
def test_the_stages_that_go_on_without_it_use_no_source_beyond_its_end(
    asked: list[AskedStage], limits: list[int | None]
) -> None:
    """And change nothing before."""
    limits = limits[: len(asked[0].weights)]
    first = first_exhausted(scheduled(asked, len(limits)), limits)

    going_on, exhausted, end = without_exhausted(asked, limits)

    found = scheduled(going_on, len(limits))
    last = first_exhausted(found, limits)
    assert (last is None) == (end is None)
    if last is not None:
        assert last.sample == end
        assert first is not None
        assert first.sample <= last.sample
        others = [limits[i] for i, weight in enumerate(found[last.stage].weights) if weight]
        assert None not in others
    assert exhausted[:1] == (() if first is None else (first,))
    assert [one.sample for one in exhausted] == sorted(one.sample for one in exhausted)
    if first is None:
        assert going_on == tuple(asked)
    else:
        before = scheduled(asked, len(limits))[: first.stage + 1]
        assert found[: first.stage] == before[: first.stage]
        kept, begun = found[first.stage], before[first.stage]
        assert (kept.first_sample, kept.bases) == (begun.first_sample, begun.bases)


def test_going_on_without_a_source_keeps_the_stages_before() -> None:
    assert without_exhausted([HALVES, AskedStage(40, (1, 9))], [12, None]) == (
        (HALVES, AskedStage(20, (0, 5)), AskedStage(40, (0, 9))),
        ((20, 0, 0, 10),),
        None,
    )
    assert without_exhausted([HALVES, AskedStage(40, (1, 9))], [12, None], 20).exhausted == ()
    with pytest.raises(InvalidRequest):
        scheduled([HALVES, AskedStage(20, (0, 0))], 2)


def test_a_stage_of_nothing_but_an_exhausted_source_is_left_out() -> None:
    """Also if the stage before it would have no block left: blocks have other sizes now."""
    asked = [AskedStage(0, (3, 4)), AskedStage(14, (5, 2)), AskedStage(15, (1, 0))]

    going_on = without_exhausted(asked, [3, None])

    assert going_on == (
        (asked[0], AskedStage(7, (0, 4)), AskedStage(14, (0, 2))),
        ((7, 0, 0, 3),),
        None,
    )


def test_all_sources_may_end() -> None:
    going_on = without_exhausted([HALVES], [12, 25])

    assert going_on.asked == (HALVES, AskedStage(20, (0, 5)))
    assert [(end.source, end.sample) for end in going_on.exhausted] == [(0, 20), (1, 35)]
    assert going_on.end_sample == 35
