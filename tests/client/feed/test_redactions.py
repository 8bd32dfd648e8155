"""Redactions of a feed by name, and what becomes of them when it loads a state."""

from __future__ import annotations

from typing import Any

import pytest

from client.feed.redactions import (
    PlannedRedaction,
    continued,
    of_state,
    planned_for,
    with_redaction,
)
from tokenfeed.errors import StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import RedactionValues, StreamParts
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import StreamSpec

ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32


def web(first_sample: int, list_hash: bytes = ONE) -> PlannedRedaction:
    return PlannedRedaction(first_sample, "web", list_hash)


def test_a_list_is_in_force_from_the_earliest_sample_that_was_asked_for() -> None:
    """The same twice is one; two lists of a dataset may begin at the same sample."""
    redactions, begin = with_redaction((), web(9))
    assert (redactions, begin) == ((web(9),), 9)
    assert with_redaction(redactions, web(9)) == (redactions, 9)
    assert with_redaction(redactions, web(12)) == (redactions, 9)
    assert with_redaction(redactions, web(5)) == ((web(5),), 5)
    assert with_redaction(redactions, web(9, OTHER)) == ((web(9), web(9, OTHER)), 9)
    assert with_redaction(redactions, PlannedRedaction(3, "code", ONE)) == (
        (PlannedRedaction(3, "code", ONE), web(9)),
        3,
    )


def test_a_stream_has_those_of_its_datasets() -> None:
    """Others wait for a change of the mixture that brings theirs."""
    spec = StreamSpec.of_dataset("web", orders.find("shuffled-1"), 1, 8)

    found = planned_for(spec, (web(4, OTHER), web(4), PlannedRedaction(1, "code", ONE)))

    assert found.redactions == (Redaction(4, 0, ONE), Redaction(4, 0, OTHER))
    assert planned_for(found, ()) == spec


def test_redactions_of_a_state_follow_their_corpus() -> None:
    """It may have another name, or be two sources; one that is gone is refused, or logged."""
    redactions = (RedactionValues(5, 0, ONE.hex()), RedactionValues(7, 1, OTHER.hex()))
    saved = StreamParts("mixture-1", 1, 8, "ab" * 32, redactions=redactions)

    with pytest.raises(StreamMismatch, match=f"list {OTHER.hex()} of another corpus"):
        of_state(saved, [["b", "a"], []], allow=False)
    found, messages = of_state(saved, [["b", "a"], []], allow=True)

    assert found == (PlannedRedaction(5, "a", ONE), PlannedRedaction(5, "b", ONE))
    assert messages == (f"redactions of another corpus are dropped list={OTHER.hex()}",)


@pytest.mark.parametrize(
    ("saved", "own", "expected"),
    [
        ([web(3)], [], [web(3)]),
        ([web(30)], [], [web(30)]),
        ([], [web(10)], [web(10)]),
        ([web(3)], [web(3)], [web(3)]),
        ([web(3)], [web(12)], [web(3)]),
        ([web(30)], [web(12)], [web(12)]),
        ([web(12)], [web(30)], [web(12)]),
        ([web(3)], [web(10, OTHER)], [web(3), web(10, OTHER)]),
    ],
)
def test_a_resumed_feed_has_those_of_the_state_and_its_own_later_ones(
    saved: list[PlannedRedaction], own: list[PlannedRedaction], expected: list[PlannedRedaction]
) -> None:
    """The state was saved at sample 10."""
    found = continued(tuple(saved), tuple(own), 10, allow=False)

    assert found == (tuple(expected), ())


@pytest.mark.parametrize(
    ("saved", "own", "problem", "allowed"),
    [
        ([], [web(9)], "at sample 10, has no list 0101.* from sample 9 on; pass 10", [web(10)]),
        ([web(3)], [web(4)], "has list 01.* from sample 3 on, but .* 4 on; pass 3", [web(3)]),
        ([web(4)], [web(3)], "has list 01.* from sample 4 on, but .* 3 on; pass 4", [web(4)]),
        ([web(30)], [web(3)], "has list 01.* from sample 30 on, but .* 3 on", [web(10)]),
        ([web(3)], [web(3, OTHER)], "has no list 0202", [web(3), web(10, OTHER)]),
    ],
)
def test_an_own_one_that_the_rows_before_had_not_is_refused_unless_it_is_allowed(
    saved: list[PlannedRedaction], own: list[PlannedRedaction], problem: str, allowed: Any
) -> None:
    """It is then in force from the saved sample on, and the state says what was before."""
    with pytest.raises(StreamMismatch, match=problem):
        continued(tuple(saved), tuple(own), 10, allow=False)

    found, messages = continued(tuple(saved), tuple(own), 10, allow=True)

    assert found == tuple(allowed)
    assert len(messages) == 1


def test_at_another_context_length_those_of_the_state_are_in_force_from_where_it_resumes() -> None:
    """Samples are other rows then: so none comes later than it was asked for."""
    saved = (web(300), web(900, OTHER))

    found = continued(saved, (web(20), web(60, OTHER)), 50, allow=False, is_rescaled=True)

    assert found == ((web(50), web(50, OTHER)), ())
