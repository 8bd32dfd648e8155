"""How long a feed waits: what is no such time is refused when it is written."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from client import Timeouts
from tokenfeed.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ({"reconnect_seconds": -1.0}, "reconnect_seconds"),
        ({"reconnect_seconds": "5"}, "reconnect_seconds"),
        ({"reconnect_seconds": float("nan")}, "reconnect_seconds"),
        ({"reconnect_seconds": float("inf")}, "reconnect_seconds"),
        ({"reconnect_seconds": 10**400}, "reconnect_seconds"),
        ({"read_seconds": 0}, "read_seconds"),
        ({"read_seconds": None}, "read_seconds"),
        ({"read_seconds": True}, "read_seconds"),
        ({"read_seconds": float("inf")}, "read_seconds"),
        ({"read_seconds": 1e10}, "read_seconds"),
        ({"read_seconds": 10**5000}, "read_seconds"),
    ],
)
def test_what_is_no_number_of_seconds_is_refused_by_its_name(
    given: dict[str, Any], subject: str
) -> None:
    """No clock can wait that long, and a server that may take no time at all is never heard."""
    with pytest.raises(InvalidRequest) as caught:
        Timeouts(**given)

    assert caught.value.subject == subject


def test_giving_up_at_once_and_never_are_both_possible() -> None:
    """A test gives up at once; an unattended run never."""
    assert Timeouts(reconnect_seconds=0).reconnect_seconds == 0
    assert Timeouts(reconnect_seconds=None).reconnect_seconds is None


def test_timeouts_stay_what_they_were_when_they_were_checked() -> None:
    """One value may serve several feeds."""
    with pytest.raises(FrozenInstanceError):
        Timeouts().read_seconds = 0  # type: ignore[misc]
