"""Wakes one thread. Holds no lock that a Ctrl-C could leave behind, and may be rung by a signal
handler.
"""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable

RECHECK_SECONDS = 0.1
"""For how long a thread that a signal may interrupt waits at the most before it looks by itself. A
signal that comes just before a wait begins does not end it: CPython 3.11 may have 0.1 ms in between
to hand the GIL over. And a ring may have woken somebody else who waits.
"""


class Notifier:
    """One thread waits, others ring. A ring that nobody waits for wakes the next one who does, so
    look again at what was waited for.
    """

    def __init__(self) -> None:
        """Nobody has rung."""
        # Of all of Python's ways to wake a thread, only this one may be used by a signal handler
        # that interrupts itself (queue.SimpleQueue, "put is reentrant").
        self._rings: queue.SimpleQueue[object] = queue.SimpleQueue()

    def notify(self) -> None:
        """Wake whoever waits, or the next one."""
        self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until somebody rings, or for so long."""
        try:
            self._rings.get(timeout=seconds)
        except queue.Empty:
            pass

    def wait_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done, or for so long, and return whether it is."""
        end = time.monotonic() + seconds
        while not is_done() and (left := end - time.monotonic()) > 0:
            self.wait(min(left, RECHECK_SECONDS))
        return is_done()

    def follow(self, owner: object) -> weakref.ref[object]:
        """Return a reference to an object, the end of which rings too.

        The callback is C: in one that is Python, Python swallows a Ctrl-C.
        """
        return weakref.ref(owner, self._rings.put)
