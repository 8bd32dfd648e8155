"""The door to files on the file systems of this machine."""

from __future__ import annotations

import errno
import glob
import os
import stat
from contextlib import AbstractContextManager, nullcontext

from ...runtime.small_files import put_file, read_regular
from ..door import ERASED_ATTRIBUTE, Entry, unreadable
from ..open_file import OpenFile
from .choice import open_bytes
from .files import open_local_file, version_of

_UNKNOWN = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors that do not say whether there is a file."""


class LocalDoor:
    """A `Door`."""

    def exists(self, path: str) -> bool:
        """Return whether there is something of this name, be it a link that leads nowhere."""
        try:
            os.lstat(path)
        except ValueError:
            return False
        except OSError as error:
            if error.errno in _UNKNOWN:
                raise unreadable(path, error) from error
            return False
        return True

    def entry(self, path: str, *, at_once: bool = False) -> Entry | None:
        """Return what a path names; None if that is nothing."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return Entry(path, False) if os.path.lexists(path) else None
        return Entry(
            path,
            stat.S_ISDIR(status.st_mode),
            status.st_size,
            version_of(status),
        )

    def entries(self, folder: str, suffixes: tuple[str, ...] = ("",)) -> list[Entry]:
        """Return what is in a folder, in no order.  Raises: InvalidCorpus."""
        try:
            with os.scandir(folder) as found:
                return [
                    Entry(each.path, _is_folder(each))
                    for each in found
                    if each.name.endswith(suffixes)
                ]
        except OSError as error:
            raise unreadable(folder, error) from error

    def glob(self, pattern: str, *, recursive: bool = True) -> list[str]:
        """Return the paths that a pattern matches, in no order."""
        return glob.glob(pattern, recursive=recursive)

    def is_link(self, path: str) -> bool:
        """Return whether a path itself is a link."""
        return os.path.islink(path)

    def real(self, path: str) -> str:
        """Return a path without links."""
        return os.path.realpath(path)

    def open(self, path: str) -> OpenFile:
        """Open a file, for a with block.  Raises: InvalidCorpus."""
        return open_local_file(path)

    def erased(self, path: str) -> bytes:
        """Return what an erasure has written on a file; b"" if that is nothing."""
        try:
            return os.getxattr(path, ERASED_ATTRIBUTE)
        except OSError:  # most files have none, and many file systems
            return b""

    def content(self, path: str, bytes_max: int) -> bytes | None:
        """Return the content of a file that lies beside others; None if there is none."""
        try:
            return read_regular(path, bytes_max)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, path: str, content: bytes) -> None:
        """Write a small file, durably: whole or not at all.  Raises: OSError."""
        put_file(path, content)

    def opening(self) -> AbstractContextManager[None]:
        """Return a context that keeps nothing."""
        return nullcontext()

    def beside(self, path: str, name: str) -> str:
        """Return the path of a file in the same folder."""
        return os.path.join(os.path.dirname(path), name)

    bytes_of = staticmethod(open_bytes)


DOOR = LocalDoor()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A circular link: opening it raises an error.
        return False
