"""Waits for a condition, with a timeout, on fast and slow machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 0.005
_STEPS = 10_000
_STEPS_SECONDS = 0.028
"""What as many steps of `_slowdown` take with nothing beside them, 2 cores, 2026-11."""


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until a condition holds, or until the timeout; return whether it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(_POLL_SECONDS)
    return True


def least_seconds(measure: Callable[[], float], enough: float, tries: int = 3) -> float:
    """Measure until a time is below what is enough, and return the least time in seconds; each is
    divided by how much longer any work takes at that moment.
    """
    least = float("inf")
    for _ in range(tries):
        before = _slowdown()
        seconds = measure()
        least = min(least, 2 * seconds / (before + _slowdown()))
        if least < enough:
            break
    return least


def _slowdown() -> float:
    """Return how much longer work takes now than where the bounds of tests were measured, at least
    1: processors differ, and other processes and other machines of the same host use them too.
    """
    began = time.perf_counter()
    # An empty loop is slowed less than real work: that also needs the kernel, and memory.
    kept = {}
    for step in range(_STEPS):
        kept[f"step {step}"] = (step, os.stat(__file__).st_size)
    return max(1.0, (time.perf_counter() - began) / _STEPS_SECONDS)


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
