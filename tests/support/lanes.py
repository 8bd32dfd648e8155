"""The lanes of the tests: what runs beside what, when all tests run in parallel.

- containers: tests/integration shares an engine and its images, so one process runs all of it.
- files: every other file runs in one process, so that its tests share servers and fixtures.
- alone: a test with a bound on time that is its meaning (`pytest.mark.alone`) runs while no other
  test does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

CONTAINERS, ALONE = "containers", "alone"


class LaneScheduling(LoadScopeScheduling):
    """A process gets the next lane of its own, or the next file without its tests of such lanes.

    folder: of the run, where the processes that have collected the tests say which run alone.
    """

    def __init__(self, config: pytest.Config, log: object, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder

    def _split_scope(self, nodeid: str) -> str:
        lane = lane_of(nodeid, alone_in(self._folder))
        return lane if lane in (CONTAINERS, ALONE) else nodeid.partition("::")[0]


def lane_of(nodeid: str, alone: Collection[str]) -> str:
    """Return the lane of a test, or the part of tests/ that its file is in.  alone: ids."""
    part = nodeid.split("/")[1].partition(".")[0]
    return ALONE if nodeid in alone else CONTAINERS if part == "integration" else part


@cache
def alone_in(folder: Path) -> frozenset[str]:
    """Return the ids of the tests that run alone, as `arrange` has written them."""
    path = folder / "lanes.alone"
    return frozenset(path.read_text().splitlines() if path.exists() else ())


def arrange(items: list[pytest.Item], folder: Path) -> None:
    """Put tests in the order in which processes take them, and write which of them run alone.

    Containers first, since they wait for an engine; then files with slow tests, because a long file
    that begins last is waited for; at the end what runs alone.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    alone = [item.nodeid for item in items if is_alone(item)]
    written = folder / f"lanes.alone.{os.getpid()}"
    written.write_text("\n".join(alone))
    written.rename(folder / "lanes.alone")

    def turn(item: pytest.Item) -> int:
        if is_alone(item):
            return 3
        return 0 if "integration" in item.path.parts else 1 if item.path in slow_files else 2

    items.sort(key=turn)


def is_alone(item: pytest.Item) -> bool:
    """Whether nothing may run beside a test."""
    return item.get_closest_marker("alone") is not None


@contextmanager
def turn_to_run(item: pytest.Item, folder: Path) -> Iterator[None]:
    """Wait until a test may run, and keep tests that may not run beside it waiting.

    folder: of the run, where all of its processes have their locks.
    """
    kind = fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH
    with open(folder / "lanes.gate", "a") as gate, open(folder / "lanes.room", "a") as room:
        # Whoever waits for the room holds the gate: else tests that share the room would follow one
        # another, and one that wants it alone would wait for ever.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Closing is not enough: a child that the test has forked has the file open too.
            fcntl.flock(room, fcntl.LOCK_UN)
