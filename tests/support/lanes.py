"""The lanes of the tests: what runs beside what, when all tests run in parallel.

- containers: tests/integration shares an engine and its images, so one process runs all of it.
- files: every other file runs in one process, so that its tests share servers and fixtures.
- alone: a test with a bound on time that is its meaning (`pytest.mark.alone`) runs while no other
  test does.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

CONTAINERS, ALONE = "containers", "alone"
"""Names of groups. pytest-xdist writes them behind an "@" at the end of a test's id."""


class FileScheduling(LoadScopeScheduling):
    """A process gets the next group, or where a test is in none, the next file."""

    def _split_scope(self, nodeid: str) -> str:
        group = group_of(nodeid)
        return group if group in (CONTAINERS, ALONE) else nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """Return the group in the id of a test, or "" if it is in none."""
    # An "@" within the brackets is a parameter's.
    return nodeid.rpartition("@")[2] if nodeid.rfind("@") > nodeid.rfind("]") else ""


def lane_of(nodeid: str) -> str:
    """Return the lane of a test, for a table of times: its group, else its part of tests/."""
    return group_of(nodeid) or nodeid.split("/")[1].partition(".")[0]


def arrange(items: list[pytest.Item]) -> None:
    """Put tests in the order in which processes take them, and mark the groups.

    Containers first, since they wait for an engine; then files with slow tests, because a long file
    that begins last is waited for; at the end what runs alone.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> int:
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.xdist_group(ALONE))
            return 3
        if "integration" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group(CONTAINERS))
            return 0
        return 1 if item.path in slow_files else 2

    items.sort(key=turn)


@contextmanager
def turn_to_run(folder: Path, is_alone: bool) -> Iterator[None]:
    """Wait until a test may run, and keep tests that may not run beside it waiting.

    folder: where all processes of a run have their locks.  is_alone: whether no other test may run.
    """
    kind = fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH
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
