"""The full digest of a corpus, stored beside its files.

A corpus up to 1 GiB is read in full at every start. The digest of a larger one is computed once, by
`tokenfeed verify` or by a server that has preloaded the corpus, and stored in a file. Servers
trust it as long as the fingerprint, and the sizes and modification times of the files are
unchanged.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress

from ..runtime.exceptions import log_exception, log_safe_name
from .beside import file_facts, path_beside
from .door import door_of
from .store import TokenStore

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_SUFFIX = ".tokenfeed-digest.json"
_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 1 << 10


def digest_path(store: TokenStore) -> str:
    """Return the path of the digest file of a store, beside its first file."""
    return path_beside(store.shards, store.stored, _SUFFIX)


def read_digest(store: TokenStore, fingerprint: bytes = b"") -> bytes:
    """Return the digest that is stored, 32 bytes; b"" if there is none, or one of other files.

    fingerprint: of the dataset. Other files may have the same names, sizes and times, as in an
    image whose build sets all times to one. By default it is not compared.
    """
    path = digest_path(store)
    try:
        if (text := door_of(path).content(path, _bytes_max(store))) is None:
            return b""
        kept = json.loads(text)
        known, own = (bytes.fromhex(kept.pop(name)) for name in ("digest", "fingerprint"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        log_exception(logging.WARNING, "digest ignored file=%s", log_safe_name(path))
        return b""
    if kept != _facts(store) or len(known) != 32 or fingerprint not in (b"", own):
        _LOG.warning(
            "digest ignored file=%s: the token files have changed; run tokenfeed verify",
            log_safe_name(path),
        )
        return b""
    return known


def write_digest(store: TokenStore, fingerprint: bytes, digest: bytes) -> str:
    """Store a digest, atomically, unless it is stored.  Returns: the path.  Raises: OSError.

    fingerprint: of the dataset, which is that of before any erasure.
    """
    path = digest_path(store)
    found = {"fingerprint": fingerprint.hex(), "digest": digest.hex()}
    text = json.dumps(_facts(store) | found, indent=1).encode()
    with suppress(OSError, ValueError):  # what cannot be read is replaced
        if door_of(path).content(path, _bytes_max(store)) == text:
            return path
    door_of(path).put(path, text)
    return path


def _bytes_max(store: TokenStore) -> int:
    return _BYTES_MAX + _SHARD_BYTES_MAX * len(store.shards)


def _facts(store: TokenStore) -> dict[str, object]:
    """Return what a digest file has to record for its digest to be valid."""
    return {"version": _VERSION, "dtype": store.stored.name, "files": file_facts(store.files)}
