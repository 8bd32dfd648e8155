"""The full digest of a corpus, kept beside its files once somebody has computed it.

A corpus up to 1 GiB is read in full at every start. Of a larger one `python -m server.verify`, or a
server that has brought it into memory, reads all, once, and leaves what it found in a sidecar; a
server that finds one trusts it for as long as the files are as old and as long as they were.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from ...runtime.exceptions import log_exception, log_safe_name
from ..formats import Stored
from .shard import Shard

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_SUFFIX = ".tokenfeed-digest.json"
_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 1 << 10


@dataclass(eq=False, slots=True)
class Digest:
    """The digest of a corpus that is served.

    known: 32 bytes; b"" until it is known, which may come while the corpus is served.
    """

    known: bytes


def sidecar_path(shards: Sequence[Shard], dtype: Stored) -> str:
    """Return where a digest is kept: beside the first file, hidden, so that no glob finds it.

    By its name it is of these files: the same one may be the first of several datasets.
    """
    folder, name = os.path.split(shards[0].path)
    names = "/".join(
        [dtype.name, *(f"{os.path.basename(s.path)} {s.layout.first_byte}" for s in shards)]
    )
    own = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return os.path.join(folder, f".{name}.{own}{_SUFFIX}")


def read_sidecar(shards: Sequence[Shard], dtype: Stored) -> bytes:
    """Return the digest that was kept, 32 bytes; b"" if there is none, or of other files."""
    path = sidecar_path(shards, dtype)
    try:
        kept = json.loads(_read_regular(path, _BYTES_MAX + _SHARD_BYTES_MAX * len(shards)))
        known = bytes.fromhex(kept.pop("digest"))
    except FileNotFoundError:
        return b""
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        log_exception(logging.WARNING, "ignored sidecar=%s", log_safe_name(path))
        return b""
    if kept != _facts(shards, dtype) or len(known) != 32:
        _LOG.warning(
            "ignored sidecar=%s: it is of other files; verify them anew", log_safe_name(path)
        )
        return b""
    return known


def write_sidecar(shards: Sequence[Shard], dtype: Stored, digest: bytes) -> str:
    """Keep a digest, whole or not at all, and return where.  Raises: OSError."""
    path = sidecar_path(shards, dtype)
    # Made anew under a name that nobody can foresee: in a shared folder a link may lie in wait.
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


def _read_regular(path: str, bytes_max: int) -> bytes:
    """Return what is in a file that is one, and no longer.  Raises: OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
            raise ValueError(f"is no regular file of at most {bytes_max} bytes")
        return file.read(bytes_max)


def _facts(shards: Sequence[Shard], dtype: Stored) -> dict[str, object]:
    """Return what has to be the same for a digest to be of these files."""
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
