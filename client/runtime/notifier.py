"""Wakes one thread. Holds no lock that a Ctrl-C could leave locked; a signal handler may notify."""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable

RECHECK_SECONDS = 0.1
"""How long a thread that a signal may interrupt waits at most before it checks again. A signal just
before a wait begins does not end the wait: CPython 3.11 may hand over the GIL for 0.1 ms in
between. A notification may also have woken another waiter.
"""


class Notifier:
    """One thread waits, others notify. A notification without a waiter wakes the next one at once,
    so a waiter has to check its condition again.
    """

    def __init__(self) -> None:
        """Begin without a notification."""
        # Python's only way to wake a thread from a signal handler that may interrupt itself
        # (queue.SimpleQueue, "put is reentrant").
        self._permits: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._awaited = False

    def notify(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        self._permits.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a notification, at most this long; or shorter, if another thread waits too, as
        when two threads close a feed.
        """
        if self._awaited:
            # With a second waiter, CPython 3.11 may miss the end of a timeout and wait for ever.
            time.sleep(RECHECK_SECONDS if seconds is None else min(seconds, RECHECK_SECONDS))
            return
        try:
            self._awaited = True
            self._permits.get(timeout=seconds)
        except queue.Empty:
            pass
        finally:
            self._awaited = False

    def wait_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait until is_done returns True, at most this long.  Returns: its last result."""
        end = time.monotonic() + seconds
        while not is_done() and (left := end - time.monotonic()) > 0:
            self.wait(min(left, RECHECK_SECONDS))
        return is_done()

    def follow(self, owner: object) -> weakref.ref[object]:
        """Return a weak reference to an object. The end of the object notifies.

        The callback is C: Python would swallow a Ctrl-C in a callback written in Python.
        """
        return weakref.ref(owner, self._permits.put)
