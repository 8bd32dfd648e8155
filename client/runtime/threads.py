"""Threads that no signal interrupts, for a consumer that a signal may interrupt.

A signal handler runs in the main thread, between any two Python instructions. A Ctrl-C there can
leave a lock of Python code locked for ever: threading.Condition and what is built on it (Event,
Thread.start), and so every lock of grpc/_channel.py. The consumer's thread therefore takes no such
lock. It wakes threads by a Notifier, which is C. Code that takes locks runs in threads started
here, and none of them is the main thread.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, NoReturn, TypeVar

from tokenfeed.errors import TokenfeedError

from .notifier import RECHECK_SECONDS

_LOG = logging.getLogger("tokenfeed.client")

Error = TypeVar("Error", bound=BaseException)
Result = TypeVar("Result")


_START_SECONDS = 1.0
"""Even on a busy machine a thread begins within milliseconds."""
_STARTING: set[object] = set()
"""One object for each thread that does not run yet. Needs no lock: each change is one step of C."""


def start_thread(target: Callable[[], object], name: str) -> None:
    """Start a daemon thread.  Raises: RuntimeError if no more threads can start.

    Thread.start waits under a Python lock until the thread runs, so a raw thread calls it. The
    thread cannot be joined: target has to report its own end.
    """
    start = object()
    try:
        _STARTING.add(start)
        _thread.start_new_thread(_start, (target, name, start))
    except BaseException:
        _STARTING.discard(start)
        raise


def _start(target: Callable[[], object], name: str, start: object) -> None:
    thread = threading.Thread(target=target, name=name, daemon=True)
    has_room = True
    try:
        thread.start()
    except RuntimeError:
        has_room = False  # for this thread, but not for a second one
    finally:
        _STARTING.discard(start)
    if not has_room:
        target()


def _await_starts() -> None:
    """Wait until each thread runs: a process with one that first runs while Python ends, which has
    freed what it needs by then, died of SIGSEGV (Python 3.11.2).
    """
    end = time.monotonic() + _START_SECONDS
    while _STARTING and time.monotonic() < end:
        time.sleep(0.001)


# Here, since functions that are registered later, such as those that end feeds, run before it.
atexit.register(_await_starts)
os.register_at_fork(after_in_child=_STARTING.clear)


class Outcome(Generic[Result]):
    """The result or the exception of a function that another thread runs."""

    def __init__(self) -> None:
        """Begin without a result."""
        self._results: queue.SimpleQueue[Callable[[], Result]] = queue.SimpleQueue()

    def run(self, function: Callable[[], Result]) -> None:
        """Call a function and keep its result or exception."""
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`, whatever it is
            self._results.put(partial(_throw, detach_error(error)))
        else:
            self._results.put(lambda: result)

    def wait(self, check: Callable[[], object] = lambda: None) -> Result:
        """Wait for the function's result and return it; for one waiter.

        check: called every RECHECK_SECONDS; an exception from it ends the wait.
        Raises: what the function raised, and KeyboardInterrupt meanwhile.
        """
        while (get_result := self._get(RECHECK_SECONDS)) is None:
            check()
        return get_result()

    def wait_for(self, seconds: float) -> Result | None:
        """Like `wait`, but return None after a timeout; for a thread that no signal interrupts."""
        get_result = self._get(seconds)
        return None if get_result is None else get_result()

    def _get(self, seconds: float) -> Callable[[], Result] | None:
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            return None


def without_traceback(error: Error) -> Error:
    """Return an error without its traceback and those of its context.

    Traceback frames hold calls, connections and the error itself. The thread that drops the last
    reference, or runs the garbage collector, would destroy gRPC's objects there.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return error


def detach_error(error: BaseException) -> BaseException:
    """Return an error for another thread to raise; logs the traceback of an unexpected one."""
    if not isinstance(error, TokenfeedError):
        _LOG.error("thread failed name=%s", threading.current_thread().name, exc_info=error)
    return without_traceback(error)


def _throw(error: BaseException) -> NoReturn:
    raise error
