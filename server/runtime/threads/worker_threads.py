"""A few threads that do work from a queue, and do not hold up the end of the process.

The end of a process waits for the threads of a ThreadPoolExecutor: a trainer whose disk hangs would
never end. Its `submit` also takes locks that a Ctrl-C in the same thread may leave locked.
"""

from __future__ import annotations

import _thread
import queue
import weakref
from collections.abc import Callable
from contextlib import suppress

Work = Callable[[], object]
_Queue = queue.SimpleQueue[Work | None]


class WorkerThreads:
    """Threads that start when there is work, and end when this is closed or garbage."""

    def __init__(self, thread_count: int) -> None:
        """Start none yet."""
        self._thread_count = thread_count
        self._work: _Queue = queue.SimpleQueue()
        self._unstarted: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(thread_count):
            self._unstarted.put(None)
        self._close = weakref.finalize(self, _end, self._work, thread_count)
        self._close.atexit = False

    def submit(self, work: Work) -> bool:
        """Have a thread call work, which raises nothing; return whether one will. None does once
        this is closed, nor if none can be started.
        """
        with suppress(queue.Empty):
            self._unstarted.get_nowait()
            try:
                _thread.start_new_thread(_do, (self._work,))
            except RuntimeError:  # there are too many threads
                self._unstarted.put(None)
        is_taken = self._close.alive and self._unstarted.qsize() < self._thread_count
        if is_taken:
            self._work.put(work)
        return is_taken

    def close(self) -> None:
        """End all threads. Work that no thread has begun is left out."""
        self._close()


def _do(work: _Queue) -> None:
    while (function := work.get()) is not None:
        function()
        del function  # it may hold memory


def _end(work: _Queue, thread_count: int) -> None:
    with suppress(queue.Empty):
        while True:
            work.get_nowait()
    for _ in range(thread_count):
        work.put(None)
