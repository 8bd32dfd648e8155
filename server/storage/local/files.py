"""Opened files, read by pread and never through a map: no file can end the process."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus

from ..door import unreadable
from ..open_file import HEAD_BYTES, OpenFile


@dataclass(frozen=True)
class LocalFile(OpenFile):
    """A file of this machine that is open until its with block ends.

    descriptor: of it.  status: its stat when it was opened.
    """

    path: str
    head: bytes
    descriptor: int
    status: os.stat_result

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self.status.st_size

    @property
    def place(self) -> str:
        """Its absolute path without symbolic links; its path if that is not known."""
        try:
            place = os.readlink(f"/proc/self/fd/{self.descriptor}")
            is_known = os.path.samestat(os.stat(place), self.status)
        except OSError:
            is_known = False
        return place if is_known else os.path.abspath(self.path)

    @property
    def modified_ns(self) -> int:
        """When its content was last written, in nanoseconds since 1970."""
        return self.status.st_mtime_ns

    @property
    def version(self) -> object:
        """Other once the file was replaced or written to."""
        return version_of(self.status)

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return size_bytes bytes from first_byte on.  Raises: InvalidCorpus if any is missing."""
        try:
            content = os.pread(self.descriptor, size_bytes, first_byte)
        except OSError as error:
            raise unreadable(self.path, error) from error
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


def version_of(status: os.stat_result) -> object:
    """Return what changes when a file is replaced, or written to."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def open_descriptor(path: str) -> int:
    """Open a file to read it, with O_NONBLOCK.  Raises: OSError, ValueError."""
    # O_NONBLOCK: opening a pipe would wait for a writer.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def open_local_file(path: str) -> LocalFile:
    """Open a file, for a with block.  Raises: InvalidCorpus, naming it, if it cannot be read."""
    try:
        descriptor = open_descriptor(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        return LocalFile(path, os.pread(descriptor, HEAD_BYTES, 0), descriptor, status)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise unreadable(path, error) from error
        raise


def read_part(path: str, first_byte: int, size_bytes: int) -> bytes:
    """Return bytes of a file, fewer if it is shorter; makes no stat call.  Raises: OSError."""
    descriptor = open_descriptor(path)
    try:
        return os.pread(descriptor, size_bytes, first_byte)
    finally:
        os.close(descriptor)


def size_on_disk(path: str) -> int:
    """Return the size in bytes of a regular file that is not empty.  Raises: InvalidCorpus."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    _require_regular(path, status)
    if status.st_size == 0:
        raise InvalidCorpus(path, "is empty")
    return status.st_size


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCorpus(path, "is not a regular file")
