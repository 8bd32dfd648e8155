"""Opened files, read by pread and never through a map: no file can end the process."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

HEAD_BYTES = 1024
"""How many of a file's first bytes most formats need to be recognized."""

_BLOCK_ITEMS = 1 << 17


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is open until its with block ends.  head: its first HEAD_BYTES bytes."""

    path: str
    descriptor: int
    status: os.stat_result
    head: bytes

    def __enter__(self) -> OpenFile:
        """Return it, for the with block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self.descriptor)

    @property
    def name(self) -> str:
        """Without its folder."""
        return os.path.basename(self.path)

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self.status.st_size

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return size_bytes bytes from first_byte on.  Raises: InvalidCorpus if any is missing."""
        try:
            content = os.pread(self.descriptor, size_bytes, first_byte)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if len(content) != size_bytes:
            raise InvalidCorpus(
                self.path,
                f"has {len(content)} of {size_bytes} bytes from byte {first_byte} on; it may be "
                "truncated",
            )
        return content

    def has_data(self, first_byte: int) -> bool:
        """Return whether there may be data from first_byte on, rather than a hole of zeros."""
        try:
            os.lseek(self.descriptor, first_byte, os.SEEK_DATA)
        except OSError as error:
            return error.errno != errno.ENXIO
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


def open_descriptor(path: str) -> int:
    """Open a file to read it, with O_NONBLOCK.  Raises: OSError, ValueError."""
    # O_NONBLOCK: opening a pipe would wait for a writer.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def open_file(path: str) -> OpenFile:
    """Open a file, for a with block.  Raises: InvalidCorpus, naming it, if it cannot be read."""
    try:
        descriptor = open_descriptor(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        return OpenFile(path, descriptor, status, os.pread(descriptor, HEAD_BYTES, 0))
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise _unreadable(path, error) from error
        raise


def read_part(path: str, first_byte: int, size_bytes: int) -> bytes:
    """Return bytes of a file, fewer if it is shorter; makes no stat call.  Raises: OSError."""
    descriptor = open_descriptor(path)
    try:
        return os.pread(descriptor, size_bytes, first_byte)
    finally:
        os.close(descriptor)


def read_regular(path: str, bytes_max: int) -> bytes:
    """Return the content of a regular file of limited size, but not of one that a link leads to.

    Raises: OSError; ValueError if it is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
            raise ValueError(f"is not a regular file of at most {bytes_max} bytes")
        return file.read(bytes_max)


def replace_file(path: str, content: bytes, mode: int = 0o666, like: str = "") -> None:
    """Write a small file, durably: whole or not at all; one process at a time.

    mode: of a new file, before the umask.  like: path of a file that may be read and written by
    those who may read and write this one; "" if there is none.  Raises: OSError.
    """
    partial = f"{path}.partial"
    with suppress(FileNotFoundError):
        os.unlink(partial)  # of a process that was killed
    # O_EXCL: a shared folder may hold a malicious link.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
        if like:
            known = os.stat(like)
            os.fchmod(descriptor, known.st_mode & 0o666)
            with suppress(PermissionError):
                os.fchown(descriptor, known.st_uid, known.st_gid)
        file.flush()
        os.fsync(descriptor)
    os.replace(partial, path)
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Wait until the names in a folder are on the disk.  Raises: OSError."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_on_disk(path: str) -> int:
    """Return the size in bytes of a regular file that is not empty.  Raises: InvalidCorpus."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    _require_regular(path, status)
    if status.st_size == 0:
        raise InvalidCorpus(path, "is empty")
    return status.st_size


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCorpus(path, "is not a regular file")


def _unreadable(path: str, error: OSError | ValueError) -> InvalidCorpus:
    return InvalidCorpus(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
