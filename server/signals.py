"""SIGTERM, SIGINT and SIGHUP: blocked in every thread, and asked for by one that does nothing else.

A handler in Python runs in the main thread, between any two of its instructions and whatever lock
it holds by then; and the signal that comes just before the main thread begins to wait has its
handler run when the wait is over. A blocked signal stays with the kernel until it is asked for.
"""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """What this process is told from outside."""

    def __init__(self) -> None:
        """Take nothing yet."""
        self._taken: SimpleQueue[int] = SimpleQueue()
        self._awaited = False

    def take(self) -> None:
        """Take the signals of this process, from a thread that starts no other before: those that
        come later inherit what is blocked.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        threading.Thread(target=self._run, name="tokenfeed-signals", daemon=True).start()

    def next(self) -> int:
        """Wait for a signal and return its number.

        Until this is called for the first time, a signal to stop ends the process at once: as long
        as it starts, it has nothing to give back, and nothing to say.
        """
        self._awaited = True
        return self._taken.get()

    def _run(self) -> None:
        while True:
            number = signal.sigwait(_NUMBERS)
            if number != signal.SIGHUP and not self._awaited:
                os._exit(0)
            self._taken.put(number)
