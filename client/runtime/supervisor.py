"""One thread a feed that ends what is under way: the consumer's thread only notifies it.

gRPC's calls and channels are cancelled and closed here, where no signal can interrupt that and
leave a lock of gRPC's held for good (threads.py). The thread begins with the first task. It ends
with the feed, even where that is only let go of, and at the end of the process.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from .notifier import Notifier
from .threads import start_thread

_LOG = logging.getLogger("tokenfeed.client")

END_SECONDS = 1.0
"""How long to wait for what was cancelled, which takes milliseconds. What has not ended by then is
left behind."""
AGAIN_SECONDS = 0.1
"""How often what was cancelled is cancelled again until it has ended: it may just have begun
something else."""


class Task(Protocol):
    """Something under way that has to be cancelled at times."""

    @property
    def ended(self) -> bool:
        """Whether nothing of it is under way any more."""

    def due_seconds(self, now: float) -> float:
        """Return after how many seconds to ask again; 0 or less: it has to be cancelled now.

        now: by time.monotonic.
        """

    def cancel(self) -> None:
        """Cancel what is under way, in a thread of its own: it may hang in gRPC."""


class Supervisor:
    """Looks after tasks until it is closed, then closes the connections."""

    def __init__(self, close_connections: Callable[[], None]) -> None:
        """Begin without a thread.  close_connections: called last, in the thread, once all tasks
        have ended or END_SECONDS have passed.
        """
        self._close_connections = close_connections
        self._tasks: list[Task] = []
        self._cancelling: list[Task] = []
        self._claims = itertools.count()
        self._owner: weakref.ref[object] | None = None
        self._started = False
        self._retired = False
        self._ended = False
        self._notifier, self._end_notifier = Notifier(), Notifier()
        self.closed = False
        """Whether its tasks have to end."""

    def end_with(self, owner: object) -> None:
        """Close it when an object is let go of."""
        self._owner = self.watch(owner)

    def watch(self, owner: object) -> weakref.ref[object]:
        """Return a reference to an object; it looks when that is let go of."""
        return self._notifier.follow(owner)

    def add(self, task: Task) -> None:
        """Look after a task.  Raises: RuntimeError if there can be no more threads."""
        self._tasks.append(task)
        if not self._started:
            start_thread(self._run, "tokenfeed-supervisor")
            self._started = True
        self._notifier.notify()

    def wake(self) -> None:
        """Have it look now."""
        self._notifier.notify()

    def retire(self, task: Task) -> None:
        """Leave a task that does not end behind, and end together with the last of the others."""
        self._forget(task)
        self._retired = True
        self._notifier.notify()

    def close(self) -> None:
        """End all tasks and the connections; waits, but not for ever. May be called twice, from any
        thread, and by a signal handler.
        """
        self.begin_to_close()
        self.await_end(END_SECONDS)

    def begin_to_close(self) -> None:
        """As `close`, without waiting."""
        self.closed = True
        self._notifier.notify()

    def await_end(self, seconds: float) -> None:
        """Wait until all has ended, or for so long."""
        if self._started:
            # Its own thread needs as long at the most, and a moment.
            self._end_notifier.wait_until(lambda: self._ended, seconds + AGAIN_SECONDS)

    def _run(self) -> None:
        self._started = True
        if next(self._claims):
            return  # `add` was interrupted before it could say that there is a thread
        _end_at_exit()
        _RUNNING.add(self)
        try:
            next_look_seconds = self._look()
            while not self._is_over():
                self._notifier.wait(next_look_seconds)
                next_look_seconds = self._look()
            self._notifier.wait_until(self._all_ended, END_SECONDS)
            self._close_connections()
        finally:
            self._ended = True
            _RUNNING.discard(self)
            self._end_notifier.notify()

    def _is_over(self) -> bool:
        if self._owner is not None and self._owner() is None:
            self.closed = True
        return self.closed or (self._retired and not self._tasks)

    def _all_ended(self) -> bool:
        self._look()
        return not self._tasks

    def _look(self) -> float:
        """Look at each task.  Returns: seconds until the next look."""
        now = time.monotonic()
        left_seconds = [_IDLE_SECONDS]
        for task in tuple(self._tasks):
            if task.ended:
                self._forget(task)
            else:
                left_seconds.append(self._look_at(task, now))
        return min(left_seconds)

    def _look_at(self, task: Task, now: float) -> float:
        """Cancel a task if that is due.  Returns: seconds until the next look."""
        try:
            left_seconds = task.due_seconds(now)
        except Exception:  # noqa: BLE001 - it and the others still have to be looked at
            _LOG.exception("could not look after a task")
            return END_SECONDS
        if left_seconds > 0:
            return left_seconds
        if task not in self._cancelling:
            self._cancelling.append(task)
            try:
                start_thread(partial(self._cancel, task), "tokenfeed-cancel")
            except RuntimeError:
                self._cancel(task)  # no more threads, as at the end of the process
        return AGAIN_SECONDS

    def _cancel(self, task: Task) -> None:
        try:
            task.cancel()
        except Exception:  # noqa: BLE001 - it is cancelled again
            _LOG.exception("could not cancel a task")
        finally:
            self._cancelling.remove(task)

    def _forget(self, task: Task) -> None:
        # Another thread may have done so.
        with suppress(ValueError):
            self._tasks.remove(task)


_IDLE_SECONDS = 60.0

_RUNNING: set[Supervisor] = set()
"""Those of this process that have a thread."""


@functools.cache
def _end_at_exit() -> None:
    """A thread must not be in gRPC's code when the interpreter is taken down: it would abort."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_RUNNING.clear)


def _end_all() -> None:
    for supervisor in tuple(_RUNNING):
        supervisor.begin_to_close()
    end = time.monotonic() + END_SECONDS
    for supervisor in tuple(_RUNNING):
        supervisor.await_end(max(0.0, end - time.monotonic()))
