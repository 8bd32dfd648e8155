"""Copies mapped files into this process' memory. The kernel copies: a read of the map in user space
would end the process with SIGBUS if a file was truncated.

Either straight to the target, or, where a system call filter forbids that, through a file in memory
(docs/decisions/0003-gather.md).
"""

from __future__ import annotations

import functools
import logging
import mmap
import os
import queue
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from tokenfeed.wire.frame import FRAME_BYTES_TARGET

from ..bytes import ByteArray
from . import syscalls

_LOG = logging.getLogger("tokenfeed.server")

_BYTES_KEPT = 4 * FRAME_BYTES_TARGET
"""A file in memory that grew beyond this, for a giant row, is not kept."""
_FILES_KEPT = 16
"""Each costs two descriptors and some MiB."""
FILES_AT_ONCE = 64
"""Enough to keep disk and processor busy. Others wait, instead of using up descriptors."""


class Copier(Protocol):
    """Copies ranges of the map. All methods may be called from several threads at once."""

    def copy(self, ranges: syscalls.Ranges, target: ByteArray) -> int | None:
        """Copy mapped ranges, one after another, into target, which has their size.

        Returns: the index of the first range that could not be read, None if all could.
        """

    def close(self) -> None:
        """Release everything that is not in use."""


def best_copier() -> Copier:
    """Return the fastest copier that this process may use."""
    return DirectCopier() if _may_copy_directly() else FileCopier()


class DirectCopier:
    """Copies straight to the target, by process_vm_writev on this process."""

    def copy(self, ranges: syscalls.Ranges, target: ByteArray) -> int | None:
        """Like `Copier.copy`."""
        return syscalls.copy_to_memory(ranges, target.ctypes.data, target.size)

    def close(self) -> None:
        """Release nothing: nothing is kept."""


class FileCopier:
    """Copies into a file in memory by pwritev, which every process may, and from there.

    A file is lent to one copy at a time, and reused.
    """

    def __init__(self) -> None:
        """Begin without files."""
        self._free: deque[_MemoryFile] = deque()  # its append and pop are atomic
        # Not a semaphore: a Ctrl-C in a trainer's thread could leave its lock locked.
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(FILES_AT_ONCE):
            self._permits.put(None)

    def copy(self, ranges: syscalls.Ranges, target: ByteArray) -> int | None:
        """Like `Copier.copy`; waits while all files are in use."""
        with self._lend(target.size) as file:
            unread = syscalls.copy_to_file(ranges, file.descriptor, target.size)
            if unread is None:
                target[:] = file.content[: target.size]
            return unread

    def close(self) -> None:
        """Close the files that are not in use."""
        self._free.clear()

    @contextmanager
    def _lend(self, size_bytes: int) -> Iterator[_MemoryFile]:
        permit = self._permits.get()
        try:
            try:
                file = self._free.pop()
            except IndexError:
                file = _MemoryFile()
            file.grow(size_bytes)
            yield file
            if file.content.size <= _BYTES_KEPT and len(self._free) < _FILES_KEPT:
                self._free.append(file)
        finally:
            self._permits.put(permit)


class _MemoryFile:
    """A file in memory, and the same bytes as an array. Closed when it is garbage."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("tokenfeed")
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self.content: ByteArray = np.empty(0, dtype=np.uint8)

    def grow(self, size_bytes: int) -> None:
        """Grow to at least size_bytes bytes."""
        if self.content.size < size_bytes:
            os.ftruncate(self.descriptor, max(size_bytes, FRAME_BYTES_TARGET))
            self.content = np.frombuffer(mmap.mmap(self.descriptor, 0), dtype=np.uint8)


@functools.cache
def _may_copy_directly() -> bool:
    """Return whether process_vm_writev works here; logs once if it does not."""
    source, target = np.ones(1, dtype=np.uint8), np.zeros(1, dtype=np.uint8)
    ranges = np.array([[source.ctypes.data, 1]], dtype=np.uint64)
    try:
        syscalls.copy_to_memory(ranges, target.ctypes.data, 1)
    except OSError as error:
        reason = error.strerror
    else:
        if target[0] == 1:
            return True
        reason = "it copies nothing"
    _LOG.info("rows are copied twice: process_vm_writev cannot be used here: %s", reason)
    return False
