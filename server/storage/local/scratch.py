"""Where the kernel copies rows to: memory that is lent to one gather at a time and used again."""

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

Tokens = npt.NDArray[np.uint8]

_BYTES_KEPT = 4 * FRAME_BYTES_TARGET
"""A scratch file that had to grow beyond this for a giant row is not kept."""
_FILES_KEPT = 16
"""Each is two descriptors and some MiB."""
_GATHERS_AT_ONCE = 64
"""Enough to keep disk and processor busy; others wait, instead of using up descriptors."""


class Room:
    """Memory that rows are read into, and later ones again."""

    def __init__(self) -> None:
        """Begin with none."""
        self.content: Tokens = np.empty(0, dtype=np.uint8)

    def grow(self, size_bytes: int) -> None:
        """Make room for so many bytes."""
        if self.content.size < size_bytes:
            self.content = np.empty(max(size_bytes, FRAME_BYTES_TARGET), dtype=np.uint8)

    def close(self) -> None:
        """Give the memory back once nobody looks at it."""


class Scratch(Room):
    """A file in memory that the kernel copies rows into, and the same bytes as an array."""

    def __init__(self) -> None:
        """Make one with no room."""
        super().__init__()
        self._descriptor = os.memfd_create("tokenfeed")

    def grow(self, size_bytes: int) -> None:
        """Make room for so many bytes."""
        if self.content.size < size_bytes:
            os.ftruncate(self._descriptor, max(size_bytes, FRAME_BYTES_TARGET))
            self.content = np.frombuffer(mmap.mmap(self._descriptor, 0), dtype=np.uint8)

    def copy_from(self, ranges: syscalls.Ranges, first_byte: int = 0) -> int | None:
        """Copy mapped ranges to first_byte and on; return which of them could not be read, None if
        all could.
        """
        return syscalls.copy_ranges(self._descriptor, ranges, first_byte)

    def close(self) -> None:
        """Give the memory back once nobody looks at it."""
        os.close(self._descriptor)


RoomKind = TypeVar("RoomKind", bound=Room)


class ScratchPool(Generic[RoomKind]):
    """Lends room, to a bounded number of gathers at once, and keeps some for the next ones."""

    def __init__(self, make: Callable[[], RoomKind]) -> None:
        """Begin with none.  make: makes one when it is asked for."""
        self._make = make
        self._free: deque[RoomKind] = deque()  # its append and pop are atomic
        self._at_once = threading.BoundedSemaphore(_GATHERS_AT_ONCE)

    def acquire(self, size_bytes: int) -> RoomKind:
        """Return room for at least so many bytes that nobody else uses, until it is given back;
        waits for its turn.

        A borrower must not borrow a second one: all of them might wait for each other.
        """
        self._at_once.acquire()
        try:
            try:
                room = self._free.pop()
            except IndexError:
                room = self._make()
            room.grow(size_bytes)
        except BaseException:
            self._at_once.release()
            raise
        return room

    def release(self, room: RoomKind) -> None:
        """Take back what was lent."""
        if room.content.size > _BYTES_KEPT or len(self._free) >= _FILES_KEPT:
            room.close()
        else:
            self._free.append(room)
        self._at_once.release()

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[RoomKind]:
        """Lend room, as `acquire`, for as long as the with block runs."""
        room = self.acquire(size_bytes)
        try:
            yield room
        finally:
            self.release(room)

    def close(self) -> None:
        """Close those that nobody uses at present."""
        while self._free:
            self._free.pop().close()
