"""Items in several threads: their results in order, and no thread left."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import ROOT
from tokenfeed.server.runtime.threads.parallel import map_in_threads


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "squares"]


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    """A fingerprint is of blocks in their order."""

    def square(number: int) -> int:
        time.sleep(0.002 * (number % 7 == 0))
        return number * number

    found = list(map_in_threads(square, range(count), 8, "squares"))

    assert found == [number * number for number in range(count)]
    assert running() == []


@pytest.mark.parametrize("threads_left", [0, 1])
def test_items_are_worked_on_even_if_no_more_threads_can_start(
    monkeypatch: pytest.MonkeyPatch, threads_left: int
) -> None:
    """A machine at its limit of processes opens its files more slowly."""
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == threads_left:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert list(map_in_threads(str, range(100), 8, "squares")) == list(map(str, range(100)))
    assert len(started) == threads_left


def test_several_items_are_worked_on_at_once() -> None:
    """A disk needs many requests at a time."""
    together = threading.Barrier(8)

    assert list(map_in_threads(lambda _: together.wait(10), range(8), 8, "squares"))


def test_an_error_comes_in_its_place_and_leaves_out_what_follows() -> None:
    """A corpus with a wrong token is not read to its end."""
    done = []

    def square(number: int) -> int:
        done.append(number)
        if number == 3:
            raise ValueError("three")
        return number

    results = map_in_threads(square, range(10_000), 2, "squares")
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)

    assert running() == []


def test_a_loop_that_is_left_leaves_no_thread() -> None:
    for found in map_in_threads(str, range(1000), 4, "squares"):
        assert found == "0"
        break

    assert running() == []


STOPPED = """
import threading, time
from tokenfeed.server.runtime.threads.parallel import map_in_threads
def work():
    for _ in map_in_threads(lambda _: time.sleep(0.01), range(10_000), 4, "sleepers"):
        began.set()
began = threading.Event()
threading.Thread(target=work, daemon=True).start()
began.wait()
"""


def test_the_end_of_a_process_does_not_wait_for_the_last_item() -> None:
    """A trainer is stopped while it opens a large corpus."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], cwd=ROOT, capture_output=True, timeout=15, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")
