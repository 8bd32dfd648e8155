"""SIGTERM, SIGINT and SIGHUP: blocked in every thread, and received by a dedicated thread.

Python runs a signal handler in the main thread, between any two of its instructions, whatever lock
that thread holds. If a signal arrives just before the main thread starts to wait, its handler runs
only after that wait. A blocked signal stays pending in the kernel until `sigwait` takes it.
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
    """The signals that this process receives."""

    def __init__(self) -> None:
        """Install nothing yet."""
        self._taken: SimpleQueue[int] = SimpleQueue()
        self._grace_seconds = 0.0

    def install(self) -> None:
        """Block the signals and start to receive them. Call it before the process starts other
        threads, because they inherit the blocked signals.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        threading.Thread(target=self._run, name="tokenfeed-signals", daemon=True).start()

    def reloads(self, grace_seconds: float) -> Iterator[int]:
        """Return an iterator that yields at each SIGHUP and ends at SIGTERM or SIGINT.

        From now on the process exits at most grace_seconds after that signal, whatever its threads
        wait for. Before this call it exits at once: it has nothing to clean up while it starts.
        """
        self._grace_seconds = grace_seconds
        return takewhile(lambda number: number == signal.SIGHUP, iter(self._taken.get, None))

    def _run(self) -> None:
        while (number := signal.sigwait(_NUMBERS)) == signal.SIGHUP:
            self._taken.put(number)
        self._taken.put(number)
        time.sleep(max(0.0, self._grace_seconds - _EXIT_SECONDS))
        # Each log line was flushed when it was written. Flushing again could block on a thread that
        # is still writing.
        os._exit(0)
