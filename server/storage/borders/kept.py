"""The file of entries that is kept beside the tokens, or in a cache folder, and found again.

Its content (kept/container.py):

    entries             8 bytes each, of all files end to end
    sparse entries      8 bytes each: every 64th entry, counted over the tokens of all files

Numbers are little-endian. A file is believed only if its description is that of the files and
delimiters of today, and its content has the hashes that the description records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..formats import Documents
from ..kept import container
from ..kept.container import Damaged, find_file, read_description, read_range
from ..kept.mapped import Numbers
from ..store import TokenStore
from . import writing
from .delimiters import Delimiters
from .reading import ENTRY, FOOTER, SPARSE, WHAT, Places
from .writing import Collector, fingerprint_of

SUFFIX = ".tokenfeed-documents"
_VERSION = 1


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
    return sparse + container.closing(description, FOOTER)


def find_kept(paths: Sequence[str], made_from: dict[str, Any]) -> KeptFile | None:
    """Return the first of these files that was made from the same; None if none was.

    One that exists and cannot be used is logged.
    """
    return find_file(WHAT, paths, partial(_checked, made_from))


def _checked(made_from: dict[str, Any], path: str, descriptor: int) -> KeptFile:
    """Return a file whose content is right.  Raises: Damaged, OSError; ValueError and others if the
    description is not of its form.
    """
    description, content_bytes = read_description(descriptor, FOOTER, len(made_from["files"]))
    counts = np.array(description.pop("entries"), dtype=np.int64)
    fingerprint = bytes.fromhex(description.pop("fingerprint"))
    sparse_sha256 = description.pop("sparse_sha256")
    if description != made_from:
        raise Damaged("was made from other files, or with another delimiter")
    token_counts = np.array([file[-1] for file in made_from["files"]], dtype=np.int64)
    if counts.shape != token_counts.shape or (counts < 1).any() or (counts > token_counts).any():
        raise Damaged("is damaged")
    places = Places.of(token_counts, counts)
    sparse_byte = places.entry_count * ENTRY.itemsize
    sparse_bytes = -(-places.entry_count // SPARSE) * ENTRY.itemsize
    if sparse_byte + sparse_bytes != content_bytes:
        raise Damaged("is truncated")
    content = read_range(descriptor, sparse_byte, sparse_byte + sparse_bytes)
    if hashlib.sha256(content).hexdigest() != sparse_sha256:
        raise Damaged("is damaged")
    sparse = np.frombuffer(content, ENTRY)
    found = _CheckedEntries(descriptor, places, sparse)
    if fingerprint_of(found.block, counts.tolist()) != fingerprint:
        raise Damaged("is damaged")
    kept = KeptFile(path, descriptor, places, sparse, fingerprint)
    if sparse_byte <= writing.MEMORY_BYTES_MAX:
        kept.entries = np.frombuffer(read_range(descriptor, 0, sparse_byte), ENTRY)
    return kept


@dataclass(frozen=True, slots=True)
class _CheckedEntries:
    """Entries of an open file, which are checked as they are read."""

    descriptor: int
    places: Places
    sparse: Numbers

    def block(self, first_byte: int, end_byte: int) -> bytes:
        """Return the bytes of entries.  Raises: Damaged, OSError."""
        content = read_range(self.descriptor, first_byte, end_byte)
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
            raise Damaged("has entries that do not ascend")
        return content


def index_facts(path: str) -> list[object]:
    """Return what changes when an index is written to.  Raises: InvalidCorpus if it is gone."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidCorpus(path, f"cannot be read: {error.strerror}") from error
    return [os.path.basename(path), status.st_size, status.st_mtime_ns]
