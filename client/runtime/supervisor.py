"""One thread per feed that cancels tasks. The consumer's thread only notifies it.

gRPC calls and channels are cancelled and closed here: no signal interrupts this thread, so no lock
of gRPC stays locked (threads.py). The thread starts with the first task. It ends when the feed is
closed or garbage-collected, and at the end of the process.
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
"""How long to wait for a cancelled task, which takes milliseconds. A task that has not ended by
then is abandoned."""
RECANCEL_SECONDS = 0.1
"""How often a cancelled task is cancelled again until it has ended: it may have started another
call meanwhile."""


class Task(Protocol):
    """Work in progress that may have to be cancelled."""

    @property
    def ended(self) -> bool:
        """Whether no work is in progress any more."""

    def due_seconds(self, now: float) -> float:
        """Return the seconds until the next check; 0 or less means: cancel it now.

        now: of time.monotonic.
        """

    def cancel(self) -> None:
        """Cancel the work, in a separate thread: this may hang in gRPC."""


class Supervisor:
    """Supervises tasks until it is closed, then closes the connections."""

    def __init__(self, close_connections: Callable[[], None]) -> None:
        """Begin without a thread.  close_connections: called last, in the supervisor's thread, once
        all tasks have ended or END_SECONDS have passed.
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
        """Whether all tasks have to end."""

    def end_with(self, owner: object) -> None:
        """Close this supervisor when an object is garbage-collected."""
        self._owner = self.watch(owner)

    def watch(self, owner: object) -> weakref.ref[object]:
        """Return a weak reference to an object, whose end triggers a check."""
        return self._notifier.follow(owner)

    def add(self, task: Task) -> None:
        """Supervise a task.  Raises: RuntimeError if no more threads can start."""
        self._tasks.append(task)
        if not self._started:
            start_thread(self._run, "tokenfeed-supervisor")
            self._started = True
        self._notifier.notify()

    def wake(self) -> None:
        """Check all tasks now."""
        self._notifier.notify()

    def retire(self, task: Task) -> None:
        """Abandon a task that does not end. The thread then ends with the last other task."""
        self._remove(task)
        self._retired = True
        self._notifier.notify()

    def close(self) -> None:
        """End all tasks and close the connections, within bounded time. May be called twice, from
        any thread and by a signal handler.
        """
        self.begin_to_close()
        self.await_end(END_SECONDS)

    def begin_to_close(self) -> None:
        """Like `close`, without waiting."""
        self.closed = True
        self._notifier.notify()

    def await_end(self, seconds: float) -> None:
        """Wait until everything has ended, at most this long."""
        if self._started:
            # The thread itself waits for the same time, and needs a moment more.
            self._end_notifier.wait_until(lambda: self._ended, seconds + RECANCEL_SECONDS)

    def _run(self) -> None:
        self._started = True
        if next(self._claims):
            return  # `add` was interrupted before it could record that there is a thread
        _end_at_exit()
        _RUNNING.add(self)
        try:
            next_check_seconds = self._check_tasks()
            while not self._is_over():
                self._notifier.wait(next_check_seconds)
                next_check_seconds = self._check_tasks()
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
        self._check_tasks()
        # A thread that still cancels may be in gRPC, even of a task that has ended meanwhile.
        return not (self._tasks or self._cancelling)

    def _check_tasks(self) -> float:
        """Check each task.  Returns: seconds until the next check."""
        now = time.monotonic()
        left_seconds = [_IDLE_SECONDS]
        for task in tuple(self._tasks):
            if task.ended:
                self._remove(task)
            else:
                left_seconds.append(self._check_task(task, now))
        return min(left_seconds)

    def _check_task(self, task: Task, now: float) -> float:
        """Cancel a task if it is due.  Returns: seconds until the next check."""
        try:
            left_seconds = task.due_seconds(now)
        except Exception:  # noqa: BLE001 - this and all other tasks still need checks
            _LOG.exception("task check failed")
            return END_SECONDS
        if left_seconds > 0:
            return left_seconds
        if task not in self._cancelling:
            self._cancelling.append(task)
            try:
                start_thread(partial(self._cancel, task), "tokenfeed-cancel")
            except RuntimeError:
                self._cancel(task)  # no more threads can start, as at the end of the process
        return RECANCEL_SECONDS

    def _cancel(self, task: Task) -> None:
        try:
            task.cancel()
        except Exception:  # noqa: BLE001 - it is cancelled again
            _LOG.exception("task cancellation failed")
        finally:
            self._cancelling.remove(task)
            if task.ended:  # else it is cancelled again in RECANCEL_SECONDS
                self._notifier.notify()

    def _remove(self, task: Task) -> None:
        # Another thread may have removed it already.
        with suppress(ValueError):
            self._tasks.remove(task)


_IDLE_SECONDS = 60.0

_RUNNING: set[Supervisor] = set()
"""All supervisors of this process that have a thread."""


@functools.cache
def _end_at_exit() -> None:
    """Close all at exit: a thread inside gRPC at interpreter shutdown would abort the process."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_RUNNING.clear)


def _end_all() -> None:
    for supervisor in tuple(_RUNNING):
        supervisor.begin_to_close()
    end = time.monotonic() + END_SECONDS
    for supervisor in tuple(_RUNNING):
        supervisor.await_end(max(0.0, end - time.monotonic()))
