"""A lock by which the processes of a machine do a work once, in a file of the user's cache folder.

The first one does the work; the others wait for it, as long as it gets on.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .cache_folder import cache_folder

_LOG = logging.getLogger("tokenfeed.server")

SCAN_SUFFIX, INDEX_SUFFIX, LOCK_SUFFIX = ".scan.json", ".index", ".index.lock"
OPENING_SUFFIX = ".objects"
"""Of the files of locks, of what is kept beside them, and of what is kept without a lock."""
_SUFFIXES = (SCAN_SUFFIX, INDEX_SUFFIX, LOCK_SUFFIX, OPENING_SUFFIX)
_WAIT_SECONDS = 60.0
"""Another process that has not got on for this long may have stopped: then this one works too."""
_TOUCH_SECONDS = 1.0
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.02, 0.5
"""Between two tries to lock; the pause doubles."""
SETTLED_SECONDS = 2.0
"""A file that was written to less than this before it was read may be written to again without
another time: clocks of file systems and web servers are coarse. What was found in it is not kept.
"""
_KEPT_SECONDS = 30 * 86_400.0
"""Files that were not used for a month are removed."""


def _touch(descriptor: int) -> None:
    with suppress(OSError):
        os.utime(descriptor)


@dataclass(frozen=True, slots=True)
class Lock:
    """A file that is locked.

    path, descriptor: of the file, whose content is the holder's.  was_waited_for: whether another
    process held it.
    """

    path: str
    descriptor: int
    was_waited_for: bool

    def touching(self, stopped: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function like `stopped`, which also shows others that the work gets on."""
        touched_at = time.monotonic()

        def touch_and_look() -> bool:
            nonlocal touched_at
            if time.monotonic() - touched_at >= _TOUCH_SECONDS:
                touched_at = time.monotonic()
                _touch(self.descriptor)
            return stopped()

        return touch_and_look


@contextmanager
def locked(what: str, name: str, stopped: Callable[[], bool]) -> Iterator[Lock | None]:
    """Lend a lock; None if no folder takes its file, or another process holds it and does not get
    on.

    what: is shared, for the log.  name: of the file.  stopped: whether to wait no longer.
    """
    opened = _open(name)
    if opened is None:
        _LOG.info("%s not shared: no folder for it can be written", what)
        yield None
        return
    path, descriptor = opened
    with open(descriptor, "r+b", buffering=0):
        is_free = _has_locked(descriptor)
        is_locked = is_free or _await_lock(descriptor, stopped)
        if not (is_locked or stopped()):
            _LOG.warning(
                "%s not shared: another process holds %s, and has not got on for %.0f s",
                *(what, name, _WAIT_SECONDS),
            )
        if is_locked:
            _touch(descriptor)  # it is in use, and its new holder gets on
        try:
            yield Lock(path, descriptor, not is_free) if is_locked else None
        finally:
            # Explicitly: a fork that was made meanwhile has this descriptor too.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def _await_lock(descriptor: int, stopped: Callable[[], bool]) -> bool:
    """Lock a file; returns whether that succeeded before its holder seemed to have stopped."""
    pause_seconds = _POLL_SECONDS
    touched_ns, touched_at = 0, time.monotonic()
    while not _has_locked(descriptor):
        # Only whether it changes: the clock of its file system may be another one.
        with suppress(OSError):
            if (now_ns := os.fstat(descriptor).st_mtime_ns) != touched_ns:
                touched_ns, touched_at = now_ns, time.monotonic()
        if stopped() or time.monotonic() - touched_at > _WAIT_SECONDS:
            return False
        time.sleep(pause_seconds)
        # The folder may be on a server that many machines ask.
        pause_seconds = min(2 * pause_seconds, _POLL_SECONDS_MAX)
    return True


def _try_to_lock(descriptor: int) -> bool:
    """Lock a file, unless another process has.  Raises: OSError if its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_locked(descriptor: int) -> bool:
    """Like `_try_to_lock`; a file system that fails meanwhile counts as locked by another."""
    try:
        return _try_to_lock(descriptor)
    except OSError:
        return False


def _open(name: str) -> tuple[str, int] | None:
    """Return the path and the descriptor of a file in the first folder that is this user's own, and
    in which files can be locked.
    """
    for folder in own_folders():
        path = os.path.join(folder, name)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            continue
        try:
            _try_to_lock(descriptor)
        except OSError:
            os.close(descriptor)
        else:
            return path, descriptor
    return None


def own_folders() -> Iterator[str]:
    """Yield the folders that files may be in, and that are this user's own; makes those that are
    not there.
    """
    for folder in _folders():
        with suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if _is_own(folder):
            yield folder


def remove_unused() -> None:
    """Remove the files of this folder that were not used for long."""
    end = time.time() - _KEPT_SECONDS
    for folder in filter(_is_own, _folders()):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                # What is beside a lock is as old as the last look at the lock.
                lock_path = entry.path.removesuffix(INDEX_SUFFIX) + LOCK_SUFFIX
                used = lock_path if entry.name.endswith(INDEX_SUFFIX) else entry.path
                unused = os.stat(used, follow_symlinks=False).st_mtime < end
                # Behind the name of what a killed process has left are eight letters of `put_file`.
                is_partial = entry.name[:-8].endswith(OPENING_SUFFIX)
                if unused and (is_partial or entry.name.endswith(_SUFFIXES)):
                    os.unlink(entry.path)


def _is_own(folder: str) -> bool:
    """Return whether a folder is this user's own, and no other may write to it."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not others_write


def _folders() -> Iterator[str]:
    """Yield the folders that the files may be in."""
    if os.path.isabs(folder := cache_folder()):  # unless the user has no home
        yield folder
    with suppress(FileNotFoundError):  # if there is no folder for temporary files
        yield os.path.join(tempfile.gettempdir(), f"tokenfeed-{os.getuid()}")
