"""Threads that no signal interrupts, for a consumer that one may.

A signal handler runs in the main thread, between any two instructions of Python. A Ctrl-C there can
leave a lock of code that is written in Python held for good: threading.Condition and what is made
of it (Event, Thread.start), and with it every lock of grpc/_channel.py. So the consumer's thread
takes no such lock. It wakes threads by a Bell, which is C; what takes locks runs in threads started
here, of which none is ever the main one.
"""

from __future__ import annotations

import _thread
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, NoReturn, TypeVar

from tokenfeed.errors import TokenfeedError

from .notifier import RECHECK_SECONDS

_LOG = logging.getLogger("tokenfeed.client")

Error = TypeVar("Error", bound=BaseException)
Result = TypeVar("Result")


def start_thread(target: Callable[[], object], name: str) -> None:
    """Start a daemon thread.  Raises: RuntimeError if there can be no more of them.

    Thread.start waits under a lock of Python's own until the thread has begun, so a thread does
    that too. Nobody joins it: have target say when it is done.
    """
    _thread.start_new_thread(_start, (target, name))


def _start(target: Callable[[], object], name: str) -> None:
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        target()  # there was room for this thread, and for no other


class Outcome(Generic[Result]):
    """What a function returns or raises, in whatever thread it runs."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._came: queue.SimpleQueue[Callable[[], Result]] = queue.SimpleQueue()

    def run(self, function: Callable[[], Result]) -> None:
        """Call a function, and keep what becomes of it."""
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`, whatever it is
            self._came.put(partial(_throw, handed_over(error)))
        else:
            self._came.put(lambda: result)

    def wait(self, look: Callable[[], object] = lambda: None) -> Result:
        """Return what the function returned, once it has; for one waiter.

        look: called every LOOK_SECONDS; what it raises ends the wait.
        Raises: what the function raised, and KeyboardInterrupt meanwhile.
        """
        while (come := self._get(RECHECK_SECONDS)) is None:
            look()
        return come()

    def wait_for(self, seconds: float) -> Result | None:
        """As `wait`, but return None after so long; for a thread that no signal interrupts."""
        come = self._get(seconds)
        return None if come is None else come()

    def _get(self, seconds: float) -> Callable[[], Result] | None:
        try:
            return self._came.get(timeout=seconds)
        except queue.Empty:
            return None


def without_frames(error: Error) -> Error:
    """Return an error without the frames that it, and what it came from, came through.

    They hold calls and connections, and the error: whoever is the last to let go of it, or the
    garbage collector in any thread, would end gRPC's objects there.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return error


def handed_over(error: BaseException) -> BaseException:
    """Return an error for another thread to raise; the log has the frames of one that nobody
    foresaw.
    """
    if not isinstance(error, TokenfeedError):
        _LOG.error("failed thread=%s", threading.current_thread().name, exc_info=error)
    return without_frames(error)


def _throw(error: BaseException) -> NoReturn:
    raise error
