"""Waiting for a state: until it is there, for a bounded time, however fast or slow a machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_LOOK_SECONDS = 0.005


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until a condition holds, for at most so long; say whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(_LOOK_SECONDS)
    return True


def let_time_pass(path: Path) -> None:
    """Wait until whatever is done to a file now gives it another time than it has.

    The clock of many file systems stands still for some milliseconds: of two changes within them,
    a fast machine's, only the first one shows.
    """
    changed_ns = path.stat().st_ctime_ns
    probe = path.with_name(f".{path.name}.now")

    def has_passed() -> bool:
        probe.touch()
        return probe.stat().st_ctime_ns > changed_ns

    try:
        assert eventually(has_passed)
    finally:
        probe.unlink()
