"""How many GETs this process has made, and for what: what an object store bills; and what its cache
has saved.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

ROW = "row"
"""Tokens of rows, and of their masks, which streams wait for."""
BLOCK = "block"
"""Blocks of the cache; tokens that are read in order, or for a fingerprint or a digest."""
INDEX = "index"
"""Beginnings of objects, indices, manifests; lists of names, and looks whether there is one."""
REASONS = (ROW, BLOCK, INDEX)


class Requests(NamedTuple):
    """gets: requests that were answered or failed.  size_bytes: that came."""

    gets: int = 0
    size_bytes: int = 0


class RequestCounts:
    """Requests by reason. May be used from several threads at once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._found = dict.fromkeys(REASONS, Requests())

    def add(self, reason: str, size_bytes: int) -> None:
        """Count a request.  reason: one of REASONS.  size_bytes: that came; 0 if it failed."""
        with self._lock:
            gets, before = self._found[reason]
            self._found[reason] = Requests(gets + 1, before + size_bytes)

    @property
    def by_reason(self) -> Mapping[str, Requests]:
        """What was counted so far."""
        with self._lock:
            return dict(self._found)


REQUESTS = RequestCounts()
"""Of this process."""


class CacheCounts(NamedTuple):
    """What a cache of objects has.

    size_bytes: of its file, 0 if there is none any more.  blocks, cached_blocks: of the datasets,
    and those that are cached.  hits, misses: rows that were copied from it, or not.  damaged:
    blocks whose checksum had changed.
    """

    size_bytes: int = 0
    blocks: int = 0
    cached_blocks: int = 0
    hits: int = 0
    misses: int = 0
    damaged: int = 0
