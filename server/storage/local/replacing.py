"""A file that takes the place of another one: a copy beside it, overwritten, synced, checked and
renamed. Interrupted at any moment, the one or the other is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ...runtime.small_files import has_name, sync_folder
from ..bytes import FileFacts
from ..door import ERASED_ATTRIBUTE
from .files import LocalFile

CURE = "and run the same command again"
_IN_USE = "another tokenfeed redact replaces it now"
_CURES = {
    errno.EAGAIN: "wait for it",
    errno.ENOSPC: "make room",
    errno.EPERM: "run it as root, or as the owner of the files",
    errno.EACCES: "run it as root, or as the owner of the files",
}
_COPY_BYTES = 1 << 20
_NAME_BYTES = 200
"""Of the name of a file, in that of its copy: a name has at most 255."""
_FICLONE = 0x40049409
"""The ioctl by which two files share their blocks: btrfs, XFS, bcachefs."""
_FS_IOC_GETFLAGS = 0x80086601
_IMMUTABLE_OR_APPEND = 0x10 | 0x20
"""The ioctl that reads the flags of a file which chattr sets, and two of them."""


class Copy:
    """A copy of a file that may take its place."""

    def __init__(self, original: LocalFile, descriptor: int) -> None:
        """Take an open copy, which may be empty yet.  original: the file."""
        self._original = original
        self._descriptor = descriptor

    def fill(self) -> None:
        """Copy the content, unless the file system shares it.  Raises: OSError."""
        if not os.fstat(self._descriptor).st_size:
            with (
                open(self._original.path, "rb") as source,
                open(self._descriptor, "wb", closefd=False) as copy,
            ):
                shutil.copyfileobj(source, copy, _COPY_BYTES)

    def write(self, place: int, content: bytes) -> None:
        """Overwrite bytes from a place on.  Raises: OSError."""
        left = memoryview(content)
        while left:
            count = os.pwrite(self._descriptor, left, place)
            place, left = place + count, left[count:]

    def sync(self) -> None:
        """Wait until it is on the disk.  Raises: OSError."""
        os.fsync(self._descriptor)

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return bytes of it.  Raises: OSError."""
        return os.pread(self._descriptor, size_bytes, first_byte)

    def is_of(self, facts: FileFacts) -> bool:
        """Return whether the file is still the one that has these facts, and has its name."""
        status = os.stat(self._original.path)
        is_known = (status.st_size, status.st_mtime_ns) == (facts.size_bytes, facts.mtime_ns)
        return is_known and os.path.samestat(status, self._original.status)

    def take_place(self, erased: bytes) -> None:
        """Rename it, with the attributes of the file.  erased: what it says of itself from then on,
        where its file system can keep that.  Raises: OSError.
        """
        path = self._original.path
        # Last: a copy that can only be read could not be removed by the next command.
        shutil.copystat(path, _copy_of(path))
        mode = os.fstat(self._descriptor).st_mode
        os.fchmod(self._descriptor, mode | stat.S_IWUSR)  # else its owner may set no attribute
        with suppress(OSError):
            os.setxattr(self._descriptor, ERASED_ATTRIBUTE, erased)
        os.fchmod(self._descriptor, stat.S_IMODE(mode))
        os.utime(self._descriptor)
        os.replace(_copy_of(path), path)
        sync_folder(os.path.dirname(path))


@contextmanager
def copy_beside(original: LocalFile) -> Iterator[Copy]:
    """Lend a copy beside a file, of the same owner, if there is room for it: with its content where
    the file system can share that, else empty. It is removed at the end, unless it was renamed.

    Raises: WriteFailed, also for an OSError within the with block.
    """
    path, status = _copy_of(original.path), original.status
    with _write_errors(original.path):
        _remove_unused(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not has_name(path, descriptor):
                raise BlockingIOError(errno.EAGAIN, _IN_USE)
            try:
                if not _cloned(original.descriptor, descriptor):
                    _require_room(os.path.dirname(path), original.size_bytes)
                own = os.fstat(descriptor)
                if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                yield Copy(original, descriptor)
            finally:
                if has_name(path, descriptor):
                    os.unlink(path)
        finally:
            os.close(descriptor)


def require_replaceable(file: LocalFile, mounted: Collection[str]) -> None:
    """Raise WriteFailed if no other file can take the place of this one.  mounted: mount points."""
    if file.path in mounted:
        problem = "is mounted by itself, so nothing can take its place"
        raise WriteFailed(file.path, f"{problem}; mount its folder instead, {CURE}")
    if _is_immutable(file):
        problem = "cannot be replaced: it is immutable, or can only be appended to"
        raise WriteFailed(file.path, f"{problem}; change that (chattr -i -a), {CURE}")
    with copy_beside(file):
        pass  # there is room for it, and its folder can be written


def require_one_name(file: LocalFile) -> None:
    """Raise InvalidCorpus if a file has other names, under which its content would stay."""
    if (count := file.status.st_nlink) > 1:
        problem = f"has {count} names (hard links), of which the others would keep its tokens"
        raise InvalidCorpus(file.path, f"{problem}; remove them, {CURE}")


def remove_unused_copy(path: str) -> None:
    """Remove the copy of a file that a killed process has left.

    Raises: WriteFailed, also if a process uses it: datasets may share files.
    """
    with _write_errors(path):
        _remove_unused(_copy_of(path))


def _is_immutable(file: LocalFile) -> bool:
    """Return whether a file cannot be replaced, even by root; False where that is unknown."""
    try:
        flags = fcntl.ioctl(file.descriptor, _FS_IOC_GETFLAGS, bytes(8))
    except OSError:
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _IMMUTABLE_OR_APPEND)


def _copy_of(path: str) -> str:
    """Return the path of the copy of a file."""
    folder, name = os.path.split(path)
    start = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
    return os.path.join(folder, f".{start}.tokenfeed-erasing")


def _remove_unused(copy: str) -> None:
    """Remove the copy that a killed process has left.  Raises: OSError, also if a process uses it:
    datasets may share files.
    """
    with suppress(FileNotFoundError):
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            # To be written: on NFS only such a file can be locked.
            descriptor = os.open(copy, os.O_RDWR | flags)
        except PermissionError:
            descriptor = os.open(copy, os.O_RDONLY | flags)  # it has its final mode already
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if has_name(copy, descriptor):
                os.unlink(copy)
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, _IN_USE) from None
        finally:
            os.close(descriptor)


def _cloned(original: int, copy: int) -> bool:
    """Return whether a file shares its blocks with another one now."""
    try:
        fcntl.ioctl(copy, _FICLONE, original)
    except OSError:
        return False
    return True


def _require_room(folder: str, size_bytes: int) -> None:
    """Raise OSError unless the disk of a folder has room for a file."""
    room = os.statvfs(folder)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < size_bytes:
        problem = f"a copy of {size_bytes:,} bytes does not fit into {free_bytes:,} free ones"
        raise OSError(errno.ENOSPC, problem)


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a WriteFailed that says what to do."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "mend that")
        problem = f"cannot be replaced: {error.strerror}; {cure}, {CURE}"
        raise WriteFailed(path, problem) from error
