"""Small files: read whole, with a limit; written whole or not at all; and names of open files."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import or_

_SEAL_BYTES = 65


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


def replace_file(path: str, content: bytes, mode: int = 0o666, like: Sequence[str] = ()) -> None:
    """Write a small file, durably: whole or not at all; one process at a time.

    mode: of a new file, before the umask.  like: paths of files; who may read or write one of them
    may do so with this one, which belongs to the owner of the last one.  Those that are not there
    are left out.  Raises: OSError.
    """
    partial = f"{path}.partial"
    with suppress(FileNotFoundError):
        os.unlink(partial)  # of a process that was killed
    # O_EXCL: a shared folder may hold a malicious link.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
        if known := [os.stat(each) for each in like if os.path.exists(each)]:
            give(descriptor, known[-1], reduce(or_, (each.st_mode & 0o666 for each in known)))
        file.flush()
        os.fsync(descriptor)
    os.replace(partial, path)
    sync_folder(os.path.dirname(path))


def give(descriptor: int, like: os.stat_result, mode: int) -> None:
    """Give an open file a mode, and the owner and group of another one, as far as this process may
    and the file system can: others than root may at most choose the group.
    """
    with suppress(OSError):
        os.fchmod(descriptor, mode)
    try:
        os.fchown(descriptor, like.st_uid, like.st_gid)
    except OSError:
        with suppress(OSError):
            os.fchown(descriptor, -1, like.st_gid)


def put_file(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a small file, durably: whole or not at all. Several processes may write it at once.

    mode: the permissions of the file; by default others may read it.  Raises: OSError.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    # A new file with an unpredictable name: a shared folder may hold a malicious link.
    descriptor, partial = tempfile.mkstemp(prefix=name, dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise
    sync_folder(folder)


def sealed(body: bytes) -> bytes:
    """Return the content of a file that shows whether it is as it was written."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unsealed(content: bytes) -> bytes:
    """Return the body of a file.  content: that of `sealed`.  Raises: ValueError for another."""
    body = content[_SEAL_BYTES:]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != content[:_SEAL_BYTES]:
        raise ValueError("is not as it was written")
    return body


def has_name(path: str, descriptor: int) -> bool:
    """Return whether an open file is the one that has a name.  Raises: OSError."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sync_folder(folder: str) -> None:
    """Wait until the names in a folder are on the disk.  Raises: OSError."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
