"""The scan of a dataset's content, made once by all processes of a machine that open its files.

Eight ranks of a node would each read and hash the same corpus. Here the first one does, and keeps
the result in a small file of the user's cache folder; the others wait for it under a lock. The
result is used as long as size, times and inode of every file are unchanged.
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

from ..runtime.exceptions import log_safe_name
from ..storage.store import TokenStore
from .content import Scan

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_BYTES_MIN = 64 << 20
"""A smaller corpus is read sooner than its file would be found."""
_BYTES_MAX = 1 << 12
_WAIT_SECONDS = 60.0
"""Another process that has not finished by then may have stopped: this one scans too."""
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.02, 0.5
"""Between two tries to lock; the pause doubles."""
_SETTLED_SECONDS = 2.0
"""A file that was written to less than this before its scan may be written to again without another
time: clocks of file systems are coarse. Its scan is not kept."""


def scan_once(
    store: TokenStore,
    checked: object,
    scan: Callable[[], Scan],
    stopped: Callable[[], bool] = lambda: False,
) -> Scan:
    """Return what `scan` returns, or what another process has found in the same files.

    checked: what the scan checks; a scan with other checks is another one.  stopped: whether not to
    wait for another process.  Raises: what `scan` raises.
    """
    content_bytes = store.shape.token_count * store.stored.itemsize
    facts = store.facts
    if content_bytes < _BYTES_MIN:
        return scan()
    files = [
        (os.path.abspath(shard.path), shard.layout.first_byte, shard.layout.dtype_assumed)
        for shard in store.shards
    ]
    # The folder may be that of all machines of a cluster.
    machine = os.uname().nodename
    name = _sha256((_VERSION, machine, store.stored.name, str(checked), files)) + ".scan.json"
    known = _sha256(list(map(str, facts)))
    settled_ns = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
    with _locked(name, stopped) as descriptor:
        if descriptor is None:
            return scan()
        if (found := _read(descriptor, known)) is not None:
            return found
        found = scan()
        if max(one.ctime_ns for one in facts) < settled_ns:
            _write(descriptor, known, found)
        return found


@contextmanager
def _locked(name: str, stopped: Callable[[], bool]) -> Iterator[int | None]:
    """Lend the descriptor of a file that is locked; None if no folder takes it, or another process
    holds the lock for too long.
    """
    descriptor = _open(name)
    if descriptor is None:
        _LOG.info("scan not shared: no folder for it can be written")
        yield None
        return
    with open(descriptor, "r+b", buffering=0):
        end = time.monotonic() + _WAIT_SECONDS
        pause_seconds = _POLL_SECONDS
        while not (locked := _has_locked(descriptor)) and time.monotonic() < end:
            if stopped():
                break
            time.sleep(pause_seconds)
            # The folder may be on a server that many machines ask.
            pause_seconds = min(2 * pause_seconds, _POLL_SECONDS_MAX)
        if not (locked or stopped()):
            _LOG.warning("scan not shared: another process has held %s for too long", name)
        try:
            yield descriptor if locked else None
        finally:
            # Explicitly: a fork that was made meanwhile has this descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


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
        if not os.path.isabs(folder):
            continue  # a user without a home
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            status = os.lstat(folder)
            others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or others_write:
                continue
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


def _folders() -> Iterator[str]:
    yield cache_folder()
    with suppress(FileNotFoundError):  # if there is no folder for temporary files
        yield os.path.join(tempfile.gettempdir(), f"tokenfeed-{os.getuid()}")


def cache_folder() -> str:
    """Return the folder for results that can be computed again."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tokenfeed")


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
    kept = json.loads(body)
    if kept["files"] != known:
        return None
    fingerprint, digest = bytes.fromhex(kept["fingerprint"]), bytes.fromhex(kept["digest"])
    return Scan(fingerprint, digest, kept["token_max"])


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
