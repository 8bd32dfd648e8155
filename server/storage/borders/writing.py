"""Collects entries, with what finds them again in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from tokenfeed.stream import identity
from tokenfeed.stream.planes import DOCUMENT_STARTS

from ..kept.collected import Collected
from ..kept.mapped import Numbers
from .known import Part
from .reading import ENTRY, SPARSE, Places

MEMORY_BYTES_MAX = 1 << 20
"""More entries than that lie in a file."""


class Collector:
    """The entries of all files, in order, and every 64th of them, counted over all files."""

    def __init__(self, token_counts: Numbers, content: Collected) -> None:
        """Begin with none.  token_counts: int64[files].  content: takes the entries."""
        self._first_tokens = np.cumsum(token_counts) - token_counts
        self._content = content
        self._counts = np.zeros(token_counts.size, dtype=np.int64)
        self._token_counts = token_counts
        self._sparse: list[Numbers] = []
        self.count = 0

    def add(self, part: Part) -> None:
        """Add the entries of the next part.  Raises: InvalidCorpus."""
        starts = part.starts
        if not starts.size:
            return
        self._sparse.append(starts[-self.count % SPARSE :: SPARSE] + self._first_tokens[part.file])
        self._counts[part.file] += starts.size
        self.count += starts.size
        self._content.append(starts.astype(ENTRY).tobytes())

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

    def fingerprint(self) -> bytes:
        """Return that of the plane, 32 bytes.  Raises: InvalidCorpus if a file cannot be read."""
        return fingerprint_of(self._content.read, self.entry_counts)


def fingerprint_of(read: Callable[[int, int], bytes], entry_counts: Sequence[int]) -> bytes:
    """Return the fingerprint of the plane, 32 bytes.

    read: returns the bytes of entries from a first byte to an end.  entry_counts: of each file.
    """
    blocks = identity.content_blocks(ENTRY.itemsize * sum(entry_counts))
    hashes = (hashlib.sha256(read(*block)).digest() for block in blocks)
    return identity.plane_fingerprint(DOCUMENT_STARTS, entry_counts, hashes)
