"""Writes the list file of a dataset: whole or not at all, and one process at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ...runtime.exceptions import log_safe_name
from ...runtime.small_files import give, has_name, replace_file
from .list_format import ListContent

_LOG = logging.getLogger("tokenfeed.server")

_LOCK_SUFFIX = ".lock"
_ELSEWHERE = "make its folder writable, or pass --list with a file elsewhere"


@contextmanager
def locked(path: str, cure: str = _ELSEWHERE) -> Iterator[None]:
    """Keep other processes from writing a list, or a record, as long as the with block lasts; waits
    for them.

    cure: if its folder cannot be written, which raises WriteFailed.
    """
    lock_path = path + _LOCK_SUFFIX
    try:
        descriptor, is_new = _locked(path, lock_path)
    except OSError as error:
        raise WriteFailed(path, f"cannot be locked: {error.strerror}; {cure}") from error
    try:
        yield
    except BaseException:
        if is_new:
            # A process that waits for it sees that it is gone.
            with suppress(OSError):
                os.unlink(lock_path)
        raise
    finally:
        os.close(descriptor)


def _locked(path: str, lock_path: str) -> tuple[int, bool]:
    """Return a descriptor of a file that this process has locked, and whether it has made it.
    Raises: OSError.
    """
    while True:
        descriptor, is_new = _opened(lock_path)
        try:
            _lock(path, descriptor)
            if has_name(lock_path, descriptor):
                return descriptor, is_new
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened(lock_path: str) -> tuple[int, bool]:
    """Return an open file that those may lock who may write to its folder, and if it is new."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with suppress(FileExistsError):
            descriptor = os.open(lock_path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            folder = os.stat(os.path.dirname(lock_path) or ".")
            give(descriptor, folder, (folder.st_mode & 0o222) * 3)
            return descriptor, True
        with suppress(FileNotFoundError):  # removed meanwhile
            return os.open(lock_path, flags), False


def _lock(path: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.info("another tokenfeed redact writes %s; waiting for it", log_safe_name(path))
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def write_list(path: str, content: ListContent, like: str = "") -> None:
    """Write a list, durably; only within `locked`.

    like: path of a token file, which those can read who are to read the list.
    Raises: InvalidCorpus, WriteFailed.
    """
    try:
        written = content.to_bytes()
    except ValueError as error:
        raise InvalidCorpus(path, str(error)) from error
    try:
        replace_file(path, written, like=[like])
    except OSError as error:
        raise WriteFailed(path, f"cannot be written: {error.strerror}; {_ELSEWHERE}") from error


def now() -> str:
    """Return the current time: UTC, ISO 8601."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
