"""The full digest of a corpus, stored beside its files.

A corpus up to 1 GiB is read in full at every start. The digest of a larger one is computed once, by
`tokenfeed verify` or by a server that has preloaded the corpus, and stored in a file. Servers
trust it as long as the sizes and modification times of the files are unchanged.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress

from ..runtime.exceptions import log_exception, log_safe_name
from .beside import file_facts, path_beside
from .bytes import Bytes
from .door import door_of
from .formats import Stored

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
DIGEST_SUFFIX = ".tokenfeed-digest.json"
_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 1 << 10


def read_digest(files: Bytes, dtype: Stored) -> bytes:
    """Return the stored digest, 32 bytes; b"" if there is none, or one of other files."""
    path = path_beside(files.shards, dtype, DIGEST_SUFFIX)
    try:
        if (text := door_of(path).content(path, _bytes_max(files))) is None:
            return b""
        kept = json.loads(text)
        known = bytes.fromhex(kept.pop("digest"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        log_exception(logging.WARNING, "digest ignored file=%s", log_safe_name(path))
        return b""
    if kept != _facts(files, dtype) or len(known) != 32:
        _LOG.warning(
            "digest ignored file=%s: the token files have changed; run tokenfeed verify",
            log_safe_name(path),
        )
        return b""
    return known


def write_digest(files: Bytes, dtype: Stored, digest: bytes) -> str:
    """Store a digest, atomically, unless it is stored.  Returns: the path.  Raises: OSError."""
    path = path_beside(files.shards, dtype, DIGEST_SUFFIX)
    text = json.dumps(_facts(files, dtype) | {"digest": digest.hex()}, indent=1).encode()
    with suppress(OSError, ValueError):  # what cannot be read is replaced
        if door_of(path).content(path, _bytes_max(files)) == text:
            return path
    door_of(path).put(path, text)
    return path


def _bytes_max(files: Bytes) -> int:
    return _BYTES_MAX + _SHARD_BYTES_MAX * len(files.shards)


def _facts(files: Bytes, dtype: Stored) -> dict[str, object]:
    """Return what a digest file has to record for its digest to be valid."""
    return {"version": _VERSION, "dtype": dtype.name, "files": file_facts(files)}
