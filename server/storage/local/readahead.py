"""Read-ahead by plan, for stores that are cold.

The kernel's own read-ahead guesses, and slows down random reads. Here the rows of the next frames
are already planned. But advice costs more than a warm gather, so it is given only while pages seem
to be missing.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np

from tokenfeed.sampling.spans import Pieces, Spans

from ..formats import Stored

_SPANS_SAMPLED = 8
_FRAMES_DISTRUSTED = 4
_FRAMES_DISTRUSTED_MAX = 256


class Readable(Protocol):
    """What read-ahead needs of a store."""

    stored: Stored

    def seem_resident(self, spans: Spans) -> bool:
        """Return whether a sample of these tokens is in memory."""

    def read_ahead(self, spans: Spans) -> None:
        """Start to read these tokens, without waiting."""


class ReadAhead:
    """Tracks whether a store is in memory; one for all streams of a store.

    cold: whether gathers seem to wait for the disk.  cold_reads: gathers that had to wait.
    advised_bytes: of which reading was started ahead.  Neither ever falls.
    Several threads change its other numbers without a lock: at worst, advice for a frame is useless
    or late.
    """

    def __init__(self, store: Readable) -> None:
        """Begin; assumes a cold store until a sample was in memory."""
        self._store = store
        self.cold = True
        self._lock = threading.Lock()  # guards the two below; only while the store is cold
        self.cold_reads = 0
        self.advised_bytes = 0
        self._frames_distrusted = 0
        self._distrust = _FRAMES_DISTRUSTED

    def advise(self, spans: Spans) -> None:
        """Start to read spans that will be gathered soon, if the store seems cold."""
        if not self.cold or not spans.shard.size:
            return
        if self._frames_distrusted > 0:
            self._frames_distrusted -= 1
        elif self._store.seem_resident(spans):
            self.cold = False
            return
        size_bytes = spans.size_tokens * self._store.stored.itemsize
        with self._lock:
            self.advised_bytes += size_bytes
        self._store.read_ahead(spans)

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


def sampled(spans: Spans) -> Spans:
    """Return a few spans, each as a row, spread evenly over all of them."""
    step = -(-spans.shard.size // _SPANS_SAMPLED)
    each = slice(None, None, max(1, step))
    shard = spans.shard[each]
    pieces = None
    if spans.pieces is not None:
        pieces = Pieces(np.arange(shard.size + 1), spans.pieces.token_count[each])
    return Spans(spans.row_tokens, spans.source[each], shard, spans.token_offset[each], pieces)
