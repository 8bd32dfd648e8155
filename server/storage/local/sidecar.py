"""The full digest of a corpus, stored beside its files; and the name of every file beside them.

A corpus up to 1 GiB is read in full at every start. The digest of a larger one is computed once, by
`tokenfeed verify` or by a server that has preloaded the corpus, and stored in a sidecar. Servers
trust a sidecar as long as the sizes and modification times of the files are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence

from ...runtime.exceptions import log_exception, log_safe_name
from ..files import read_regular
from ..formats import Stored
from ..store import StoredShard
from .shard import Shard

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
DIGEST_SUFFIX = ".tokenfeed-digest.json"
_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 1 << 10


def sidecar_path(shards: Sequence[StoredShard], dtype: Stored, suffix: str = DIGEST_SUFFIX) -> str:
    """Return the path of a file beside the first file, and hidden, so that no glob matches it.

    Its name depends on all files, since several datasets may begin with the same file.
    """
    folder, name = os.path.split(shards[0].path)
    names = "/".join(
        [dtype.name, *(f"{os.path.basename(s.path)} {s.layout.first_byte}" for s in shards)]
    )
    own = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return os.path.join(folder, f".{name}.{own}{suffix}")


def read_sidecar(shards: Sequence[Shard], dtype: Stored) -> bytes:
    """Return the stored digest, 32 bytes; b"" if there is none, or one of other files."""
    path = sidecar_path(shards, dtype)
    try:
        kept = json.loads(read_regular(path, _BYTES_MAX + _SHARD_BYTES_MAX * len(shards)))
        known = bytes.fromhex(kept.pop("digest"))
    except FileNotFoundError:
        return b""
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        log_exception(logging.WARNING, "digest ignored file=%s", log_safe_name(path))
        return b""
    if kept != _facts(shards, dtype) or len(known) != 32:
        _LOG.warning(
            "digest ignored file=%s: the token files have changed; run tokenfeed verify",
            log_safe_name(path),
        )
        return b""
    return known


def write_sidecar(shards: Sequence[Shard], dtype: Stored, digest: bytes) -> str:
    """Store a digest, atomically.  Returns: the path of the file.  Raises: OSError."""
    path = sidecar_path(shards, dtype)
    # A new file with an unpredictable name: a shared folder may hold a malicious link.
    descriptor, partial = tempfile.mkstemp(prefix=os.path.basename(path), dir=os.path.dirname(path))
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(_facts(shards, dtype) | {"digest": digest.hex()}, file, indent=1)
            file.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise
    return path


def _facts(shards: Sequence[Shard], dtype: Stored) -> dict[str, object]:
    """Return what a sidecar has to record for its digest to be valid."""
    return {
        "version": _VERSION,
        "dtype": dtype.name,
        "files": [
            [
                os.path.basename(shard.path),
                shard.size_bytes,
                shard.facts.mtime_ns,
                shard.layout.first_byte,
                shard.layout.token_count,
            ]
            for shard in shards
        ],
    }
