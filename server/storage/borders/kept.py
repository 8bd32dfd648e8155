"""The file of entries that is kept beside the tokens, or in a cache folder, and found again.

    entries             8 bytes each, of all files end to end
    sparse entries      8 bytes each: every 64th entry, counted over the tokens of all files
    description         JSON: what the entries were made from, and hashes of them
    its length          8 bytes
    its SHA-256         32 bytes
    FOOTER              8 bytes

Numbers are little-endian. A file is believed only if its description is that of the files and
delimiters of today, and its content has the hashes that the description records.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...runtime.exceptions import log_safe_name
from ..formats import Documents, Stored
from ..local.sidecar import sidecar_path
from ..store import StoredShard, TokenStore
from . import writing
from .delimiters import Delimiters
from .reading import ENTRY, FOOTER, SPARSE, Numbers, Places
from .writing import Collector, fingerprint_of

_LOG = logging.getLogger("tokenfeed.server")

SUFFIX = ".tokenfeed-documents"
_VERSION = 1
_END = struct.Struct("<Q32s8s")
_DESCRIPTION_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 2 << 10


class _Damaged(Exception):
    """A kept file that cannot be used."""


@dataclass(slots=True)
class KeptFile:
    """A kept file that was checked.

    descriptor: of the open file, closed by `close`.  sparse: as in Collector.  entries: all of
    them; None if they are too many for memory.
    """

    path: str
    descriptor: int
    places: Places
    sparse: Numbers
    fingerprint: bytes
    entries: Numbers | None = None

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)


def kept_paths(
    shards: Sequence[StoredShard], stored: Stored, cache_dir: str | None
) -> tuple[str, ...]:
    """Return where the file may be, in order: in cache_dir if that is given, beside the tokens."""
    beside = sidecar_path(shards, stored, SUFFIX)
    if cache_dir is None:
        return (beside,)
    # The cache folder is shared by corpora of other folders, whose files may have the same names.
    paths = "\0".join(os.path.abspath(shard.path) for shard in shards)
    own = hashlib.sha256(paths.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(cache_dir, f".{own}{os.path.basename(beside)}"), beside


def made_from(
    store: TokenStore,
    delimiters: Delimiters,
    known: Sequence[Documents] | None,
    fingerprint: bytes,
) -> dict[str, Any]:
    """Return what entries depend on: the files as they were opened, their indices, delimiters.

    fingerprint: of the tokens. Other files may have the same sizes and times, as in an image of a
    container whose build sets all times to one.
    Raises: InvalidCorpus if an index is gone.
    """
    files = [
        [
            os.path.basename(shard.path),
            facts.size_bytes,
            facts.mtime_ns,
            shard.layout.first_byte,
            shard.layout.token_count,
        ]
        for shard, facts in zip(store.shards, store.facts, strict=True)
    ]
    return {
        "version": _VERSION,
        "dtype": store.stored.name,
        "tokens": fingerprint.hex(),
        "files": files,
        "indices": None if known is None else [index_facts(one.path) for one in known],
        "document_end_token": delimiters.end,
        "document_start_token": delimiters.start,
    }


def closing(collector: Collector, made_from: dict[str, Any], fingerprint: bytes) -> bytes:
    """Return what follows the entries in their file."""
    sparse = collector.sparse.astype(ENTRY).tobytes()
    description = made_from | {
        "entries": collector.entry_counts,
        "fingerprint": fingerprint.hex(),
        "sparse_sha256": hashlib.sha256(sparse).hexdigest(),
    }
    text = json.dumps(description).encode()
    return sparse + text + _END.pack(len(text), hashlib.sha256(text).digest(), FOOTER)


def find_kept(paths: Sequence[str], made_from: dict[str, Any]) -> KeptFile | None:
    """Return the first of these files that was made from the same; None if none was.

    One that exists and cannot be used is logged.
    """
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _warn(path, f"cannot be read: {error.strerror}")
            continue
        try:
            return _checked(path, descriptor, made_from)
        except _Damaged as problem:
            _warn(path, str(problem))
        except OSError as error:
            _warn(path, f"cannot be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            _warn(path, "is damaged")
        os.close(descriptor)
    return None


def _checked(path: str, descriptor: int, made_from: dict[str, Any]) -> KeptFile:
    """Return a file whose content is right.  Raises: _Damaged, OSError; ValueError and others if
    the description is not of its form.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _Damaged("is not a regular file")
    end_byte = status.st_size - _END.size
    size_bytes, digest, footer = _END.unpack(_read(descriptor, end_byte, status.st_size))
    if footer != FOOTER:
        raise _Damaged("is truncated")
    file_count = len(made_from["files"])
    if size_bytes > min(end_byte, _DESCRIPTION_BYTES_MAX + file_count * _SHARD_BYTES_MAX):
        raise _Damaged("is damaged")
    text = _read(descriptor, end_byte - size_bytes, end_byte)
    if hashlib.sha256(text).digest() != digest:
        raise _Damaged("is damaged")
    description = json.loads(text)
    counts = np.array(description.pop("entries"), dtype=np.int64)
    fingerprint = bytes.fromhex(description.pop("fingerprint"))
    sparse_sha256 = description.pop("sparse_sha256")
    if description != made_from:
        raise _Damaged("was made from other files, or with another delimiter")
    token_counts = np.array([file[-1] for file in made_from["files"]], dtype=np.int64)
    if counts.shape != token_counts.shape or (counts < 1).any() or (counts > token_counts).any():
        raise _Damaged("is damaged")
    places = Places.of(token_counts, counts)
    sparse_byte = places.entry_count * ENTRY.itemsize
    sparse_bytes = -(-places.entry_count // SPARSE) * ENTRY.itemsize
    if sparse_byte + sparse_bytes != end_byte - size_bytes:
        raise _Damaged("is truncated")
    content = _read(descriptor, sparse_byte, sparse_byte + sparse_bytes)
    if hashlib.sha256(content).hexdigest() != sparse_sha256:
        raise _Damaged("is damaged")
    sparse = np.frombuffer(content, ENTRY)
    found = _CheckedEntries(descriptor, places, sparse)
    if fingerprint_of(found.block, counts.tolist()) != fingerprint:
        raise _Damaged("is damaged")
    kept = KeptFile(path, descriptor, places, sparse, fingerprint)
    if sparse_byte <= writing.MEMORY_BYTES_MAX:
        kept.entries = np.frombuffer(_read(descriptor, 0, sparse_byte), ENTRY)
    return kept


@dataclass(frozen=True, slots=True)
class _CheckedEntries:
    """Entries of an open file, which are checked as they are read."""

    descriptor: int
    places: Places
    sparse: Numbers

    def block(self, first_byte: int, end_byte: int) -> bytes:
        """Return the bytes of entries.  Raises: _Damaged, OSError."""
        content = _read(self.descriptor, first_byte, end_byte)
        skipped = -first_byte % ENTRY.itemsize
        whole = content[skipped : len(content) - (len(content) - skipped) % ENTRY.itemsize]
        first = (first_byte + skipped) // ENTRY.itemsize
        entries = np.frombuffer(whole, ENTRY)
        starts = self.places.counted_over_all(entries, first)
        end = first + entries.size
        in_memory = self.sparse[-(-first // SPARSE) : -(-end // SPARSE)]
        own = self.places.first_entries
        files = slice(*np.searchsorted(own[:-1], (first, end)))
        if (
            (starts[1:] <= starts[:-1]).any()
            or starts[-1] >= self.places.first_tokens[-1]
            or (starts[-first % SPARSE :: SPARSE] != in_memory).any()
            or entries[own[:-1][files] - first].any()
        ):
            raise _Damaged("has entries that do not ascend")
        return content


def _read(descriptor: int, first_byte: int, end_byte: int) -> bytes:
    """Return bytes of a file.  Raises: _Damaged if it has fewer; OSError."""
    if first_byte < 0:
        raise _Damaged("is truncated")
    parts = []
    while first_byte < end_byte:
        parts.append(os.pread(descriptor, end_byte - first_byte, first_byte))
        if not parts[-1]:
            raise _Damaged("is truncated")
        first_byte += len(parts[-1])
    return b"".join(parts)


def index_facts(path: str) -> list[object]:
    """Return what changes when an index is written to.  Raises: InvalidCorpus if it is gone."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidCorpus(path, f"cannot be read: {error.strerror}") from error
    return [os.path.basename(path), status.st_size, status.st_mtime_ns]


def _warn(path: str, problem: str) -> None:
    _LOG.warning("document borders ignored file=%s: it %s", log_safe_name(path), problem)
