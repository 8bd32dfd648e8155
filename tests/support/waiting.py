"""Waits for a condition, with a timeout, on fast and slow machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.005


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until a condition holds, or until the timeout; return whether it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(_POLL_SECONDS)
    return True


def let_time_pass(path: Path) -> None:
    """Wait until a change of a file would give it another time than it has.

    The clock of many file systems advances only every few milliseconds: two changes within one
    such step have the same time.
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
