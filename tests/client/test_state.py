"""A saved position: plain values that say which stream they belong to."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from client.state import StreamParts, log_differences, read_state, require_same_stream, write_state
from tokenfeed.errors import InvalidRequest, StreamMismatch

PARTS = StreamParts("shuffled-1", 2**64 - 1, 2048, "ab" * 32)
STATE = write_state(2**62 + 1, PARTS)


def test_a_state_survives_json() -> None:
    """Whatever a trainer keeps beside its checkpoint."""
    assert read_state(json.loads(json.dumps(STATE))) == (2**62 + 1, PARTS)


def test_a_state_says_nothing_of_ranks_and_places() -> None:
    """Every rank may load rank 0's file, on another machine and in another number."""
    assert set(STATE) == {
        "version",
        "sample",
        "order",
        "seed",
        "context_length",
        "fingerprint",
    }


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("order", "random-1"),
        ("seed", 1),
        ("context_length", 1024),
        ("fingerprint", "cd" * 32),
    ],
)
def test_what_differs_is_named_unless_it_is_allowed(
    part: str, other: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A hash alone could not say that it was the seed."""
    own = StreamParts(**{**{name: STATE[name] for name in PARTS.__slots__}, part: other})

    with pytest.raises(StreamMismatch, match=str(getattr(PARTS, part))) as caught:
        require_same_stream(PARTS, own, allow=())
    assert caught.value.subject == part

    with caplog.at_level(logging.WARNING):
        require_same_stream(PARTS, own, allow=(part,))
        assert caplog.text == ""  # something else may still refuse it
        log_differences(PARTS, own)
    assert part in caplog.text


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "no dict"),
        ([], "no dict"),
        ({}, "version None"),
        (STATE | {"version": 2}, "version 2"),
        ({name: value for name, value in STATE.items() if name != "seed"}, "lacks seed"),
        (STATE | {"sample": "12"}, "no integer"),
        (STATE | {"sample": -1}, "not in"),
        (STATE | {"sample": 2**63 + 1}, "not in"),
        (STATE | {"context_length": 0}, r"context_length: 0 is not in"),
    ],
)
def test_what_is_no_state_is_refused_with_the_reason(state: Any, problem: str) -> None:
    """A wrong file must not become a wrong position."""
    with pytest.raises(InvalidRequest, match=problem):
        read_state(state)


@pytest.mark.parametrize("allow", ["fingerprint", ("corpus",), ("rank",)])
def test_what_cannot_be_allowed_is_refused(allow: Any) -> None:
    """A typing error there would be found on the day of the accident."""
    with pytest.raises(InvalidRequest, match="allow"):
        require_same_stream(PARTS, PARTS, allow)


def test_a_permission_is_no_part_of_a_stream() -> None:
    """It allows something, and changes no state."""
    require_same_stream(PARTS, PARTS, allow=("mid_epoch",))

    assert "mid_epoch" not in STATE
    with pytest.raises(StreamMismatch, match="context_length"):
        require_same_stream(
            PARTS, StreamParts("shuffled-1", 2**64 - 1, 8, "ab" * 32), allow=("mid_epoch",)
        )
