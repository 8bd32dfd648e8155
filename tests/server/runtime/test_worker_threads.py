"""Threads that do work from a queue, and hold up nobody."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from server.runtime.worker_threads import WorkerThreads
from tests.conftest import ROOT
from tests.support.waiting import eventually


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def before() -> int:
    gc.collect()
    return thread_count()


def test_work_is_done_by_no_more_threads_than_allowed(before: int) -> None:
    """They start when there is work, and all of it is done."""
    threads = WorkerThreads(3)
    assert thread_count() == before
    may_end = threading.Event()
    done: list[int] = []
    for number in range(50):
        threads.submit(lambda number=number: (may_end.wait(10), done.append(number)))

    assert thread_count() == before + 3

    may_end.set()
    assert eventually(lambda: sorted(done) == list(range(50)))
    threads.close()


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_threads_end_once_nobody_needs_them(before: int, way: str) -> None:
    """Queued work is left out, and what is submitted afterwards is not done."""
    threads = WorkerThreads(2)
    begun, may_end = threading.Semaphore(0), threading.Event()
    done: list[int] = []
    for number in range(5):
        threads.submit(
            lambda number=number: (begun.release(), may_end.wait(10), done.append(number))
        )
    for _ in range(2):
        assert begun.acquire(timeout=10)

    if way == "closed":
        threads.close()
        threads.submit(lambda: done.append(9))
    else:
        del threads
        gc.collect()
    may_end.set()

    assert eventually(lambda: thread_count() == before)
    assert sorted(done) == [0, 1]


def test_work_is_not_kept_while_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ever do it, and it holds memory."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    threads = WorkerThreads(2)
    done = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", refuse)
        threads.submit(done.set)

    assert threads._work.empty()
    # And they start once they can.
    threads.submit(done.set)
    assert done.wait(10)


def test_the_end_of_a_process_waits_for_no_work(tmp_path: Path) -> None:
    """A disk may hang for ever."""
    code = (
        "import threading\n"
        "from server.runtime.worker_threads import WorkerThreads\n"
        "threads, begun = WorkerThreads(2), threading.Event()\n"
        "threads.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait()\n"
        "print('ends')\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
