"""The scan of a dataset's content, made once by all processes of a machine that open its files.

Eight ranks of a node would each read and hash the same corpus. Here the first one does, and keeps
the result in a small file of the user's cache folder; the others wait for it under a lock, as long
as it gets on. The result is used as long as size, times and inode of every file are unchanged.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..runtime.cache_folder import cache_folder
from ..runtime.exceptions import log_safe_name
from ..storage.store import TokenStore
from .content import Scan

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_BYTES_MIN = 64 << 20
"""A smaller corpus is read sooner than its file would be found."""
_BYTES_MAX = 1 << 12
_WAIT_SECONDS = 60.0
"""Another process that has read no block for so long may have stopped: this one scans too."""
_TOUCH_SECONDS = 1.0
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.02, 0.5
"""Between two tries to lock; the pause doubles."""
_KEPT_SECONDS = 30 * 86_400.0
"""Scans that were not used for a month are removed."""
_SUFFIX = ".scan.json"
_SETTLED_SECONDS = 2.0
"""A file that was written to less than this before its scan may be written to again without another
time: clocks of file systems are coarse. Its scan is not kept."""


def scan_once(
    store: TokenStore,
    checked: object,
    scan: Callable[[Callable[[], bool]], Scan],
    stopped: Callable[[], bool] = lambda: False,
) -> Scan:
    """Return what `scan` returns, or what another process has found in the same files.

    checked: what the scan checks; a scan with other checks is another one.  scan: is given a
    function to call before each block, which returns whether to stop.  stopped: whether to stop.
    Raises: what `scan` raises.
    """
    content_bytes = store.shape.token_count * store.stored.itemsize
    facts = store.facts
    if content_bytes < _BYTES_MIN:
        return scan(stopped)
    files = [
        (os.path.abspath(shard.path), shard.layout.first_byte, shard.layout.dtype_assumed)
        for shard in store.shards
    ]
    # The folder may be that of all machines of a cluster.
    machine = os.uname().nodename
    name = _sha256((_VERSION, machine, store.stored.name, str(checked), files)) + _SUFFIX
    known = _sha256(list(map(str, facts)))
    settled_ns = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
    with _locked(name, stopped) as descriptor:
        if descriptor is None:
            return scan(stopped)
        if (found := _read(descriptor, known)) is not None:
            return found
        found = scan(_touching(descriptor, stopped))
        if max(one.ctime_ns for one in facts) < settled_ns:
            _write(descriptor, known, found)
            _remove_unused()
        return found


def _touching(descriptor: int, stopped: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function like `stopped`, which also shows others that the scan gets on."""
    touched_at = time.monotonic()

    def touch_and_look() -> bool:
        nonlocal touched_at
        if time.monotonic() - touched_at >= _TOUCH_SECONDS:
            touched_at = time.monotonic()
            _touch(descriptor)
        return stopped()

    return touch_and_look


def _touch(descriptor: int) -> None:
    with suppress(OSError):
        os.utime(descriptor)


@contextmanager
def _locked(name: str, stopped: Callable[[], bool]) -> Iterator[int | None]:
    """Lend the descriptor of a file that is locked; None if no folder takes it, or another process
    holds the lock and does not get on.
    """
    descriptor = _open(name)
    if descriptor is None:
        _LOG.info("scan not shared: no folder for it can be written")
        yield None
        return
    with open(descriptor, "r+b", buffering=0):
        locked = _await_lock(descriptor, stopped)
        if not (locked or stopped()):
            _LOG.warning(
                "scan not shared: another process holds %s, and has read nothing for %.0f s",
                name,
                _WAIT_SECONDS,
            )
        if locked:
            _touch(descriptor)  # it is in use, and its new holder gets on
        try:
            yield descriptor if locked else None
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


def _open(name: str) -> int | None:
    """Return the descriptor of a file in the first folder that is this user's own, and in which
    files can be locked.
    """
    for folder in _folders():
        with suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if not _is_own(folder):
            continue
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(os.path.join(folder, name), flags, 0o600)
        except OSError:
            continue
        try:
            _try_to_lock(descriptor)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None


def _remove_unused() -> None:
    """Remove scans that were not used for long."""
    end = time.time() - _KEPT_SECONDS
    for folder in filter(_is_own, _folders()):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                unused = entry.stat(follow_symlinks=False).st_mtime < end
                if unused and entry.name.endswith(_SUFFIX):
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
    """Yield the folders that scans may be in."""
    if os.path.isabs(folder := cache_folder()):  # unless the user has no home
        yield folder
    with suppress(FileNotFoundError):  # if there is no folder for temporary files
        yield os.path.join(tempfile.gettempdir(), f"tokenfeed-{os.getuid()}")


def _read(descriptor: int, known: str) -> Scan | None:
    """Return the scan in a locked file; None if there is none, or a damaged one, or one of changed
    files.
    """
    try:
        content = os.pread(descriptor, _BYTES_MAX, 0)
    except OSError:
        return None
    seal, _, body = content.partition(b"\n")
    if seal != _seal(body):
        return None
    try:
        kept = json.loads(body)
        fingerprint, digest = bytes.fromhex(kept["fingerprint"]), bytes.fromhex(kept["digest"])
        found = Scan(fingerprint, digest, int(kept["token_max"]))
        is_usable = kept["files"] == known and len(fingerprint) == 32 and len(digest) in (0, 32)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # of another version
    return found if is_usable else None


def _write(descriptor: int, known: str, found: Scan) -> None:
    content = {
        "files": known,
        "fingerprint": found.fingerprint.hex(),
        "digest": found.digest.hex(),
        "token_max": found.token_max,
    }
    body = json.dumps(content).encode()
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _seal(body) + b"\n" + body, 0)
    except OSError as error:
        _LOG.info("scan not shared: %s", log_safe_name(str(error.strerror)))


def _seal(body: bytes) -> bytes:
    """Return a hash, which shows that the rest of a file is as it was written."""
    return hashlib.sha256(body).hexdigest().encode()


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()[:32]
