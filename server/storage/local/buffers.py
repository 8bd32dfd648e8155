"""Buffers that rows are read into: each is lent to one gather at a time, and reused."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.wire.frame import FRAME_BYTES_TARGET

from . import syscalls

TokenBytes = npt.NDArray[np.uint8]

_BYTES_KEPT = 4 * FRAME_BYTES_TARGET
"""A buffer that grew beyond this, for a giant row, is not kept."""
_FILES_KEPT = 16
"""Each costs two descriptors and some MiB."""
_GATHERS_AT_ONCE = 64
"""Enough to keep disk and processor busy. Others wait, instead of using up descriptors."""


class Buffer:
    """Memory that rows are read into."""

    def __init__(self) -> None:
        """Begin empty."""
        self.content: TokenBytes = np.empty(0, dtype=np.uint8)

    def grow(self, size_bytes: int) -> None:
        """Grow to at least size_bytes bytes."""
        if self.content.size < size_bytes:
            self.content = np.empty(max(size_bytes, FRAME_BYTES_TARGET), dtype=np.uint8)

    def close(self) -> None:
        """Release the memory once no array refers to it."""


class FileBuffer(Buffer):
    """A file in memory that the kernel copies rows into, and the same bytes as an array."""

    def __init__(self) -> None:
        """Create an empty file in memory."""
        super().__init__()
        self._descriptor = os.memfd_create("tokenfeed")

    def grow(self, size_bytes: int) -> None:
        """Grow to at least size_bytes bytes."""
        if self.content.size < size_bytes:
            os.ftruncate(self._descriptor, max(size_bytes, FRAME_BYTES_TARGET))
            self.content = np.frombuffer(mmap.mmap(self._descriptor, 0), dtype=np.uint8)

    def copy_from(self, ranges: syscalls.Ranges, first_byte: int = 0) -> int | None:
        """Copy mapped ranges to first_byte and on.  Returns: the index of the first range that
        could not be read, None if all could.
        """
        return syscalls.copy_ranges(self._descriptor, ranges, first_byte)

    def close(self) -> None:
        """Release the memory once no array refers to it."""
        os.close(self._descriptor)


BufferT = TypeVar("BufferT", bound=Buffer)


class BufferPool(Generic[BufferT]):
    """Lends buffers to at most _GATHERS_AT_ONCE gathers, and keeps some for reuse."""

    def __init__(self, make: Callable[[], BufferT]) -> None:
        """Begin empty.  make: creates a buffer."""
        self._make = make
        self._free: deque[BufferT] = deque()  # its append and pop are atomic
        self._at_once = threading.BoundedSemaphore(_GATHERS_AT_ONCE)

    def acquire(self, size_bytes: int) -> BufferT:
        """Return a buffer of at least size_bytes bytes for exclusive use until it is released;
        waits while all are in use.

        A thread must not acquire a second one: all threads might wait for each other.
        """
        self._at_once.acquire()
        try:
            try:
                buffer = self._free.pop()
            except IndexError:
                buffer = self._make()
            buffer.grow(size_bytes)
        except BaseException:
            self._at_once.release()
            raise
        return buffer

    def release(self, buffer: BufferT) -> None:
        """Take back a buffer."""
        if buffer.content.size > _BYTES_KEPT or len(self._free) >= _FILES_KEPT:
            buffer.close()
        else:
            self._free.append(buffer)
        self._at_once.release()

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[BufferT]:
        """Acquire a buffer, and release it when the with block ends."""
        buffer = self.acquire(size_bytes)
        try:
            yield buffer
        finally:
            self.release(buffer)

    def close(self) -> None:
        """Close the buffers that are not in use."""
        while self._free:
            self._free.pop().close()
