"""Wakes one thread. Holds no lock that a Ctrl-C could leave behind, and may be rung by a signal
handler.
"""

from __future__ import annotations

import queue


class Bell:
    """One thread waits, others ring. A ring that nobody waits for wakes the next one who does, so
    look again at what was waited for.
    """

    def __init__(self) -> None:
        """Nobody has rung."""
        # Of all of Python's ways to wake a thread, only this one may be used by a signal handler
        # that interrupts itself (queue.SimpleQueue, "put is reentrant").
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Wake whoever waits, or the next one."""
        self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until somebody rings, or for so long."""
        try:
            self._rings.get(timeout=seconds)
        except queue.Empty:
            pass
