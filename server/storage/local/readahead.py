"""Read-ahead by plan, for files that are cold.

The kernel's own read-ahead guesses, and slows down random reads. Here the rows of the next frames
are already planned. But advice costs more than a warm gather, so it is given only while pages seem
to be missing.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ..bytes import Extents

_FRAMES_DISTRUSTED = 4
_FRAMES_DISTRUSTED_MAX = 256


class Readable(Protocol):
    """What read-ahead needs of bytes."""

    def seem_resident(self, extents: Extents) -> bool:
        """Return whether a sample of these bytes is in memory."""

    def read_ahead(self, extents: Extents) -> None:
        """Start to read these bytes, without waiting."""


class ReadAhead:
    """Tracks whether files are in memory; one for all streams of a dataset.

    cold: whether gathers seem to wait for the disk.  cold_reads: gathers that had to wait.
    advised_bytes: of which reading was started ahead.  Neither ever falls.
    Several threads change its other numbers without a lock: at worst, advice for a frame is useless
    or late.
    """

    def __init__(self, readable: Readable) -> None:
        """Begin; assumes cold files until a sample was in memory."""
        self._bytes = readable
        self.cold = True
        self._lock = threading.Lock()  # guards the two below; only while it is cold
        self.cold_reads = 0
        self.advised_bytes = 0
        self._frames_distrusted = 0
        self._distrust = _FRAMES_DISTRUSTED

    def advise(self, extents: Extents) -> None:
        """Start to read extents that will be gathered soon, if the files seem cold."""
        if not self.cold:
            return
        if self._frames_distrusted > 0:
            self._frames_distrusted -= 1
        elif self._bytes.seem_resident(extents):
            self.cold = False
            return
        with self._lock:
            self.advised_bytes += extents.total_bytes
        self._bytes.read_ahead(extents)

    def observe(self, waits: int) -> None:
        """Record how often a gather had to wait, for a page or for a row.

        For files that this process may not write, the kernel reports all pages as resident. Then
        only waits tell: each time they contradict the sample, it is ignored for twice as many
        frames.
        """
        if not waits:
            return
        with self._lock:
            self.cold_reads += 1
        if not self.cold:
            self.cold = True
            self._frames_distrusted = self._distrust
            self._distrust = min(2 * self._distrust, _FRAMES_DISTRUSTED_MAX)
