"""SIGTERM, SIGINT and SIGHUP: blocked in every thread, and asked for by one that does nothing else.

A handler in Python runs in the main thread, between any two of its instructions and whatever lock
it holds by then; and the signal that comes just before the main thread begins to wait has its
handler run when the wait is over. A blocked signal stays with the kernel until it is asked for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import takewhile
from queue import SimpleQueue

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXIT_SECONDS = 0.3


class Signals:
    """What this process is told from outside."""

    def __init__(self) -> None:
        """Take nothing yet."""
        self._taken: SimpleQueue[int] = SimpleQueue()
        self._grace_seconds = 0.0

    def install(self) -> None:
        """Take the signals of this process, from a thread that starts no other before: those that
        come later inherit what is blocked.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        threading.Thread(target=self._run, name="tokenfeed-signals", daemon=True).start()

    def reloads(self, grace_seconds: float) -> Iterator[int]:
        """Return what yields at each SIGHUP, and ends when the process is told to stop.

        From now on it is gone so long after that at the latest, whatever its threads wait for.
        Until now it was at once: while it starts it has nothing to give back.
        """
        self._grace_seconds = grace_seconds
        return takewhile(lambda number: number == signal.SIGHUP, iter(self._taken.get, None))

    def _run(self) -> None:
        while (number := signal.sigwait(_NUMBERS)) == signal.SIGHUP:
            self._taken.put(number)
        self._taken.put(number)
        time.sleep(max(0.0, self._grace_seconds - _EXIT_SECONDS))
        # Each line of the log was flushed when it was written. To flush it once more would be to
        # wait for whoever is still writing to it.
        os._exit(0)
