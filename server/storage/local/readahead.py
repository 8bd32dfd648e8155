"""Has tokens be read ahead, from the plan, where a store is cold.

The kernel's own read-ahead guesses, and ruins random reads. We know: the rows of the next frames
are already planned. But advice costs more than a warm gather, so it is given only where pages are
seen to be missing.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tokenfeed.sampling.spans import Pieces, Spans

# The windows of the next 32 batches of 32 x 2048: enough for a disk to work on at once. 75 Mtok/s
# with 2 MiB, 105 with 4, 95 with 8, 103 with 16 (spreads overlap). 2 cores, 2026-11;
# docs/decisions/0006-warm-up.md
READ_AHEAD_BYTES = 4 << 20
_SPANS_SAMPLED = 8
_FRAMES_DISTRUSTED = 4
_FRAMES_DISTRUSTED_MAX = 256


class Readable(Protocol):
    """What a store can say and do of tokens that are asked for soon."""

    def seem_resident(self, spans: Spans) -> bool:
        """Say whether a sample of them is in memory."""

    def read_ahead(self, spans: Spans) -> None:
        """Start to read them, without waiting."""


class ReadAhead:
    """What is known of how much of a store is in memory; one for all streams of a store.

    Its few numbers are changed by many threads without a lock: at worst a frame is advised in vain,
    or late.
    """

    def __init__(self, store: Readable) -> None:
        """Watch a store; assumes the worst until it has looked."""
        self._store = store
        self._cold = True
        self._frames_distrusted = 0
        self._distrust = _FRAMES_DISTRUSTED

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk."""
        return self._cold

    def advise(self, spans: Spans) -> None:
        """Start to read spans that are gathered soon, if they seem to be cold."""
        if not self._cold or not spans.shard.size:
            return
        if self._frames_distrusted > 0:
            self._frames_distrusted -= 1
        elif self._store.seem_resident(spans):
            self._cold = False
            return
        self._store.read_ahead(spans)

    def observe(self, waits: int) -> None:
        """Learn from how often a gather had to wait, for a page or for a row.

        The kernel says of files that we could not write that all their pages are resident. Then
        only waits tell: each time they prove the sample wrong, it is not asked for longer.
        """
        if waits and not self._cold:
            self._cold = True
            self._frames_distrusted = self._distrust
            self._distrust = min(2 * self._distrust, _FRAMES_DISTRUSTED_MAX)


def sampled(spans: Spans) -> Spans:
    """Return a few spans, each as a row, taken evenly from all of them."""
    step = -(-spans.shard.size // _SPANS_SAMPLED)
    some = slice(None, None, max(1, step))
    shard = spans.shard[some]
    pieces = None
    if spans.pieces is not None:
        pieces = Pieces(np.arange(shard.size + 1), spans.pieces.token_count[some])
    return Spans(spans.row_tokens, spans.source[some], shard, spans.token_offset[some], pieces)
