"""Where the kernel copies rows to: files in memory, lent to one gather at a time and used again."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from tokenfeed.frame import FRAME_BYTES_TARGET

from . import kernel

Tokens = npt.NDArray[np.uint8]

_BYTES_KEPT = 4 * FRAME_BYTES_TARGET
"""A scratch file that had to grow beyond this for a giant row is not kept."""
_FILES_KEPT = 16
"""Each is two descriptors and some MiB."""
_GATHERS_AT_ONCE = 64
"""Enough to keep disk and processor busy; others wait, instead of using up descriptors."""


class Scratch:
    """A file in memory that the kernel copies rows into, and the same bytes as an array."""

    def __init__(self) -> None:
        """Make one with no room."""
        self.content: Tokens = np.empty(0, dtype=np.uint8)
        self._descriptor = os.memfd_create("tokenfeed")

    def grow(self, size_bytes: int) -> None:
        """Make room for so many bytes."""
        if self.content.size < size_bytes:
            os.ftruncate(self._descriptor, max(size_bytes, FRAME_BYTES_TARGET))
            self.content = np.frombuffer(mmap.mmap(self._descriptor, 0), dtype=np.uint8)

    def fill(self, ranges: kernel.Ranges, first_byte: int = 0) -> bool:
        """Copy mapped ranges to first_byte and on; say whether all of them could be read."""
        return kernel.copy_ranges(self._descriptor, ranges, first_byte)

    def close(self) -> None:
        """Give the memory back once nobody looks at it."""
        os.close(self._descriptor)


class ScratchPool:
    """Lends scratch files, a bounded number at once, and keeps a few for the next gathers."""

    def __init__(self) -> None:
        """Begin with none; they are made when they are asked for."""
        self._free: deque[Scratch] = deque()  # its append and pop are atomic
        self._at_once = threading.BoundedSemaphore(_GATHERS_AT_ONCE)

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[Scratch]:
        """Lend a scratch file of at least so many bytes that nobody else uses; waits for its turn.

        A borrower must not borrow a second one: all of them might wait for each other.
        """
        with self._at_once:
            try:
                scratch = self._free.pop()
            except IndexError:
                scratch = Scratch()
            try:
                scratch.grow(size_bytes)
                yield scratch
            finally:
                giant = scratch.content.size > _BYTES_KEPT
                if giant or len(self._free) >= _FILES_KEPT:
                    scratch.close()
                else:
                    self._free.append(scratch)

    def close(self) -> None:
        """Close those that nobody uses at present."""
        while self._free:
            self._free.pop().close()
