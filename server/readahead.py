"""Tells the kernel which pages come next, from the plan, where the corpus is cold.

The kernel's own read-ahead guesses, and ruins random reads. We know: the windows of the next frames
are already planned. But advice costs more than a warm gather, so it is given only where pages are
seen to be missing.
"""

from __future__ import annotations

import resource

import numpy as np

from tokenfeed.plan import Windows

from . import kernel
from .corpus import Corpus

# The windows of the next 32 batches of 32 x 2048: enough for a disk to work on at once. 75 Mtok/s
# with 2 MiB, 105 with 4, 95 with 8, 103 with 16 (spreads overlap). 2 cores, 2026-11;
# docs/decisions/0006-warm-up.md
READ_AHEAD_BYTES = 4 << 20
_ROWS_SAMPLED = 8
_FRAMES_DISTRUSTED = 4
_FRAMES_DISTRUSTED_MAX = 256


class ReadAhead:
    """What is known of how much of a corpus is in memory; one for all streams of a corpus.

    Its few numbers are changed by many threads without a lock: at worst a frame is advised in vain,
    or late.
    """

    def __init__(self, corpus: Corpus) -> None:
        """Watch a corpus; assumes the worst until it has looked."""
        self._corpus = corpus
        self._at_once = True
        self._cold = True
        self._frames_distrusted = 0
        self._distrust = _FRAMES_DISTRUSTED

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk."""
        return self._cold

    def advise(self, windows: Windows, row_bytes: int) -> None:
        """Have the kernel start reading windows that are gathered soon, if they seem to be cold."""
        if not self._cold or not windows.shard.size:
            return
        pages = _whole_pages(self._corpus.ranges(windows, row_bytes))
        if self._frames_distrusted > 0:
            self._frames_distrusted -= 1
        elif self._seem_resident(pages):
            self._cold = False
            return
        self._at_once = self._at_once and kernel.read_ahead(pages)
        if not self._at_once:
            kernel.read_ahead_singly(pages)

    def observe(self, major_faults: int) -> None:
        """Learn from how many pages a gather had to wait for.

        The kernel says of files that we could not write that all their pages are resident. Then
        only faults tell: each time they prove the sample wrong, it is not asked for longer.
        """
        if major_faults and not self._cold:
            self._cold = True
            self._frames_distrusted = self._distrust
            self._distrust = min(2 * self._distrust, _FRAMES_DISTRUSTED_MAX)

    def _seem_resident(self, pages: kernel.Ranges) -> bool:
        sample = pages[:: -(-len(pages) // _ROWS_SAMPLED)]
        return all(kernel.resident(address, size_bytes) for address, size_bytes in sample.tolist())


def major_faults() -> int:
    """Return how many pages this thread has had to wait for so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _whole_pages(ranges: kernel.Ranges) -> kernel.Ranges:
    """Return the ranges grown to whole pages."""
    page_bytes = np.uint64(kernel.PAGE_BYTES)
    first = ranges[:, 0] // page_bytes * page_bytes
    end = -(-(ranges[:, 0] + ranges[:, 1]) // page_bytes) * page_bytes
    return np.stack([first, end - first], axis=1)
