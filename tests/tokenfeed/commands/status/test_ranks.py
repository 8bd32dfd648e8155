"""Ranks, and those that are not there, as spans."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.commands.status.words import Span, absent, count_of, spans_of


def numbers_of(spans: list[Span]) -> list[int]:
    return [number for first, last in spans for number in range(first, last + 1)]


@given(
    st.integers(1, 40).flatmap(
        lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))
    )
)
def test_spans_are_the_ranks_and_gaps_are_the_others(run: tuple[int, set[int]]) -> None:
    """As if they were listed one by one, which takes too long where there are 2^40."""
    world_size, here = run
    spans = spans_of(here)
    away = absent(spans, world_size)

    assert numbers_of(spans) == sorted(here)
    assert numbers_of(away) == sorted(set(range(world_size)) - here)
    assert count_of(away) == world_size - len(here)
    assert all(before.last + 1 < after.first for before, after in itertools.pairwise(spans))


def test_a_rank_that_no_run_has_is_no_gap() -> None:
    """`tokenfeed top` shows what any server answers."""
    assert absent(spans_of([1, 9]), 4) == [Span(0, 0), Span(2, 3)]
