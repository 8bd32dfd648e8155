"""The lanes of the tests: what runs beside what, when all tests run in parallel.

- containers: tests/integration shares an engine and its images, so one process runs all of it.
- files: each other file runs in one process, so that its tests share servers and fixtures.
- alone: a test with a bound on time that is its meaning (`pytest.mark.alone`) runs while no other
  test does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling


class LaneScheduling(LoadScopeScheduling):
    """A process gets the next file without its tests that run alone, or all tests that do, or all
    of tests/integration.

    folder: it is shared by the processes of a run, which write there which tests run alone.
    """

    def __init__(self, config: pytest.Config, log: object, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder

    def _split_scope(self, nodeid: str) -> str:
        if nodeid in _alone_in(self._folder):
            return "alone"
        return "containers" if "/integration/" in nodeid else nodeid.partition("::")[0]


def sort_by_lane(items: list[pytest.Item], folder: Path) -> None:
    """Put tests in the order in which processes take them, and write which of them run alone.

    Containers first, since they wait for an engine; then files with slow tests, because a long file
    that begins last is waited for; at the end what runs alone.  folder: see LaneScheduling.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    written = folder / f"lanes.alone.{os.getpid()}"
    written.write_text("\n".join(item.nodeid for item in items if is_alone(item)))
    written.rename(folder / "lanes.alone")

    def rank(item: pytest.Item) -> int:
        if is_alone(item):
            return 3
        return 0 if "integration" in item.path.parts else 1 if item.path in slow_files else 2

    items.sort(key=rank)


def is_alone(item: pytest.Item) -> bool:
    """Whether nothing may run beside a test."""
    return item.get_closest_marker("alone") is not None


@contextmanager
def lane_lock(item: pytest.Item, folder: Path) -> Iterator[None]:
    """Wait until a test may run, and keep tests that may not run beside it waiting.

    folder: it is shared by the processes of a run.
    """
    kind = fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH
    # Locks of a process: a child that a test has forked, and left behind, has no part in them.
    with open(folder / "lanes.gate", "a+") as gate, open(folder / "lanes.room", "a+") as room:
        # A test holds the gate while it waits for the room. Without the gate, tests that share the
        # room could follow one another for ever, and one that needs it alone would not get it.
        fcntl.lockf(gate, fcntl.LOCK_EX)
        fcntl.lockf(room, kind)
        fcntl.lockf(gate, fcntl.LOCK_UN)
        yield


@cache
def _alone_in(folder: Path) -> frozenset[str]:
    return frozenset((folder / "lanes.alone").read_text().splitlines())
