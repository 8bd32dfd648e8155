"""Threads that do work from a queue, and hold up nobody."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.waiting import eventually
from tokenfeed.server.runtime.threads.worker_threads import WorkerThreads


class Works:
    """Pieces of work that wait for a signal, and tell which threads do them."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.done: list[int] = []
        self.may_end = threading.Event()

    def submit(self, threads: WorkerThreads, count: int) -> None:
        for number in range(count):
            threads.submit(partial(self._work, number))

    def _work(self, number: int) -> None:
        self.threads.append(threading.get_native_id())
        assert self.may_end.wait(10)
        self.done.append(number)

    def living(self) -> int:
        return sum(os.path.exists(f"/proc/self/task/{thread}") for thread in set(self.threads))


def test_work_is_done_by_no_more_threads_than_allowed() -> None:
    """They start when there is work, and all of it is done."""
    threads, works = WorkerThreads(3), Works()
    works.submit(threads, 50)

    assert eventually(lambda: len(works.threads) == 3)
    works.may_end.set()
    assert eventually(lambda: sorted(works.done) == list(range(50)))
    assert len(set(works.threads)) == 3
    threads.close()


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_threads_end_once_nobody_needs_them(way: str) -> None:
    """Queued work is left out, and what is submitted afterwards is not done."""
    threads, works = WorkerThreads(2), Works()
    works.submit(threads, 5)
    assert eventually(lambda: len(works.threads) == 2)

    if way == "closed":
        threads.close()
        works.submit(threads, 1)
    else:
        del threads
        gc.collect()
    assert works.living() == 2
    works.may_end.set()

    assert eventually(lambda: works.living() == 0)
    assert sorted(works.done) == [0, 1]


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
        "from tokenfeed.server.runtime.threads.worker_threads import WorkerThreads\n"
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
