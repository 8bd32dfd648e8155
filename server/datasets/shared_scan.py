"""The scan of a dataset's content, made once by all processes of a machine that open its files.

Eight ranks of a node would each read and hash the same corpus. Here the first one does, and keeps
the result in a small file of the user's cache folder; the others wait for it under a lock, as long
as it gets on. The result is used as long as size, times and inode of every file are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable

from ..runtime.exceptions import log_safe_name
from ..runtime.once_a_machine import (
    SCAN_SUFFIX,
    SETTLED_SECONDS,
    locked,
    remove_unused,
)
from ..runtime.small_files import sealed, unsealed
from ..storage.door import absolute
from ..storage.store import TokenStore
from .content import Scan

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_BYTES_MIN = 64 << 20
"""A smaller corpus of this machine is read sooner than its file would be found."""
_BYTES_MAX = 1 << 12


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
    facts = store.files.facts
    if content_bytes < _BYTES_MIN and not facts[0].tags:
        return scan(stopped)
    files = [
        (absolute(shard.path), shard.layout.first_byte, shard.layout.dtype_assumed)
        for shard in store.shards
    ]
    # The folder may be that of all machines of a cluster, and times of files are those of one.
    machine = "" if facts[0].tags else os.uname().nodename
    of_store = (store.stored.name, store.shape.row_tokens)
    name = _sha256((_VERSION, machine, *of_store, str(checked), files)) + SCAN_SUFFIX
    known = _sha256(list(map(str, facts)))
    settled_ns = time.time_ns() - int(SETTLED_SECONDS * 1e9)
    with locked("scan", name, stopped) as lock:
        if lock is None:
            return scan(stopped)
        if (found := _read(lock.descriptor, known)) is not None:
            return found
        found = scan(lock.touching(stopped))
        if max(one.ctime_ns for one in facts) < settled_ns:
            _write(lock.descriptor, known, found)
            remove_unused()
        return found


def _read(descriptor: int, known: str) -> Scan | None:
    """Return the scan in a locked file; None if there is none, or a damaged one, or one of changed
    files.
    """
    try:
        kept = json.loads(unsealed(os.pread(descriptor, _BYTES_MAX, 0)))
        fingerprint, digest = bytes.fromhex(kept["fingerprint"]), bytes.fromhex(kept["digest"])
        found = Scan(fingerprint, digest, int(kept["token_max"]))
        is_usable = kept["files"] == known and len(fingerprint) == 32 and len(digest) in (0, 32)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None  # damaged, or of another version
    return found if is_usable else None


def _write(descriptor: int, known: str, found: Scan) -> None:
    content = {
        "files": known,
        "fingerprint": found.fingerprint.hex(),
        "digest": found.digest.hex(),
        "token_max": found.token_max,
    }
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, sealed(json.dumps(content).encode()), 0)
    except OSError as error:
        _LOG.info("scan not shared: %s", log_safe_name(str(error.strerror)))


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()[:32]
