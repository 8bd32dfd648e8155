"""Collects entries: in memory up to a limit, more in a file, in the first folder that takes it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

import numpy as np

from tokenfeed.stream import identity
from tokenfeed.stream.planes import DOCUMENT_STARTS

from ..kept.mapped import Numbers
from ..kept.spool import Spool
from .known import Part
from .reading import ENTRY, SPARSE, Places

MEMORY_BYTES_MAX = 1 << 20
"""More entries than that lie in a file."""


class Collector:
    """The entries of all files, in order, and every 64th of them, counted over all files."""

    def __init__(self, token_counts: Numbers, make_spool: Callable[[], Spool]) -> None:
        """Begin with none.

        token_counts: int64[files].  make_spool: called once there are more than fit in memory.
        """
        self._first_tokens = np.cumsum(token_counts) - token_counts
        self._make_spool = make_spool
        self._counts = np.zeros(token_counts.size, dtype=np.int64)
        self._token_counts = token_counts
        self._blocks: list[bytes] = []
        self._waiting_bytes = 0
        self._sparse: list[Numbers] = []
        self.count = 0
        self.spool: Spool | None = None

    def add(self, part: Part) -> None:
        """Add the entries of the next part.  Raises: NoPlace."""
        starts = part.starts
        if not starts.size:
            return
        self._sparse.append(starts[-self.count % SPARSE :: SPARSE] + self._first_tokens[part.file])
        self._counts[part.file] += starts.size
        self.count += starts.size
        self._blocks.append(starts.astype(ENTRY).tobytes())
        self._waiting_bytes += len(self._blocks[-1])
        if self._waiting_bytes > MEMORY_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory to the file, which is made if there is none.  Raises: NoPlace."""
        content = b"".join(self._blocks)
        if self.spool is None:
            self.spool = self._make_spool()
        self.spool.append(content)
        self._blocks, self._waiting_bytes = [], 0

    @property
    def places(self) -> Places:
        """Where files begin among tokens and entries."""
        return Places.of(self._token_counts, self._counts)

    @property
    def entry_counts(self) -> list[int]:
        """How many entries each file has."""
        counts: list[int] = self._counts.tolist()
        return counts

    @property
    def sparse(self) -> Numbers:
        """int64[ceil(count / SPARSE)], every such entry, counted over all files."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._sparse])

    def in_memory(self) -> Numbers:
        """Return all entries; only while there is no file."""
        return np.frombuffer(b"".join(self._blocks), ENTRY)

    def fingerprint(self) -> bytes:
        """Return that of the plane, 32 bytes.  Raises: OSError if the file cannot be read."""
        if self.spool is None:
            content = b"".join(self._blocks)
            return fingerprint_of(lambda first, end: content[first:end], self.entry_counts)
        descriptor = self.spool.descriptor
        return fingerprint_of(
            lambda first, end: os.pread(descriptor, end - first, first), self.entry_counts
        )


def fingerprint_of(read: Callable[[int, int], bytes], entry_counts: Sequence[int]) -> bytes:
    """Return the fingerprint of the plane, 32 bytes.

    read: returns the bytes of entries from a first byte to an end.  entry_counts: of each file.
    """
    blocks = identity.content_blocks(ENTRY.itemsize * sum(entry_counts))
    hashes = (hashlib.sha256(read(*block)).digest() for block in blocks)
    return identity.plane_fingerprint(DOCUMENT_STARTS, entry_counts, hashes)
