"""A file that is open to be read once, in order or anywhere."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Own = TypeVar("Own", bound="OpenFile")

HEAD_BYTES = 1024
"""How many of a file's first bytes most formats need to be recognized."""
_BLOCK_ITEMS = 1 << 17
_STREAM_BYTES = 1 << 20


class OpenFile(ABC):
    """A file that is open until its with block ends.

    head: its first HEAD_BYTES bytes.
    """

    path: str
    head: bytes

    def __enter__(self: Own) -> Own:
        """Return it, for the with block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def name(self) -> str:
        """Without its folder."""
        return os.path.basename(self.path)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """When it was opened."""

    @property
    @abstractmethod
    def modified_ns(self) -> int:
        """When its content was last written, in nanoseconds since 1970."""

    @property
    @abstractmethod
    def version(self) -> object:
        """Other once the file was replaced or written to."""

    @property
    def tags(self) -> tuple[str, ...]:
        """What names its content, such as an ETag; none where a storage has nothing."""
        return ()

    @abstractmethod
    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return size_bytes bytes from first_byte on.  Raises: InvalidCorpus if any is missing."""

    def close(self) -> None:  # noqa: B027 - nothing to do for bytes in memory
        """Close it."""

    def has_data(self, first_byte: int) -> bool:
        """Return whether there may be data from first_byte on, rather than a hole of zeros."""
        return True

    def array(
        self, first_byte: int, count: int, dtype: npt.DTypeLike
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Yield count numbers, stored as dtype, up to a MiB at once.  Raises: InvalidCorpus."""
        stored = np.dtype(dtype)
        for first in range(0, count, _BLOCK_ITEMS):
            size_bytes = min(_BLOCK_ITEMS, count - first) * stored.itemsize
            block = self.read(first_byte + first * stored.itemsize, size_bytes)
            yield np.frombuffer(block, stored).astype(np.int64)

    def stream(self) -> io.BufferedReader:
        """Return all of it as a stream, which raises InvalidCorpus."""
        return io.BufferedReader(_Stream(self), _STREAM_BYTES)


class _Stream(io.RawIOBase):
    """The bytes of a file, in order from any place on."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size_bytes}
        place = begins[whence] + offset
        if place < 0:
            raise ValueError(f"{place} is before the first byte")
        self._place = place
        return place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size_bytes = max(0, min(len(buffer), self._file.size_bytes - self._place))
        buffer[:size_bytes] = self._file.read(self._place, size_bytes)
        self._place += size_bytes
        return size_bytes
