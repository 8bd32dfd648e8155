"""The full digest of a corpus, kept beside its files once somebody has computed it.

A corpus up to 1 GiB is read in full at every start. Of a larger one `python -m server.verify` reads
all, once, and leaves what it found in a sidecar; a server that finds one trusts it for as long as
the files are as old and as long as they were.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence

import numpy as np

from .blame import blame, file_name
from .shard import Shard

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_SUFFIX = ".tokenfeed-digest.json"


def sidecar_path(shards: Sequence[Shard]) -> str:
    """Return where a digest is kept: beside the first file, hidden, so that no glob finds it."""
    folder, name = os.path.split(shards[0].path)
    return os.path.join(folder, f".{name}{_SUFFIX}")


def read_sidecar(shards: Sequence[Shard], dtype: np.dtype[np.unsignedinteger]) -> bytes:
    """Return the digest that was kept, 32 bytes; b"" if there is none, or of other files."""
    path = sidecar_path(shards)
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        known = bytes.fromhex(kept.pop("digest"))
    except FileNotFoundError:
        return b""
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        _LOG.warning("ignored sidecar=%s: %s", file_name(path), blame())
        return b""
    if kept != _facts(shards, dtype) or len(known) != 32:
        _LOG.warning("ignored sidecar=%s: it is of other files; verify them anew", file_name(path))
        return b""
    return known


def write_sidecar(
    shards: Sequence[Shard], dtype: np.dtype[np.unsignedinteger], digest: bytes
) -> str:
    """Keep a digest, whole or not at all, and return where.  Raises: OSError."""
    path = sidecar_path(shards)
    partial = f"{path}.{os.getpid()}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(_facts(shards, dtype) | {"digest": digest.hex()}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    return path


def _facts(shards: Sequence[Shard], dtype: np.dtype[np.unsignedinteger]) -> dict[str, object]:
    """Return what has to be the same for a digest to be of these files."""
    return {
        "version": _VERSION,
        "dtype": dtype.name,
        "files": [
            [os.path.basename(shard.path), shard.size_bytes, shard.facts.written_ns]
            for shard in shards
        ],
    }
