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


class Prices(NamedTuple):
    """What a store bills, in dollars.

    million_gets: S3 takes 0.40.  gigabyte: 10^9 bytes that come; free within a region of S3, and
    0.01 and more from another one.
    """

    million_gets: float = 0.40
    gigabyte: float = 0.0

    def dollars(self, gets: int, size_bytes: int) -> float:
        """Return what some GETs cost."""
        return gets / 1e6 * self.million_gets + size_bytes / 1e9 * self.gigabyte

    def bill(self, gets: int, size_bytes: int) -> str:
        """Return what some GETs cost, in words."""
        return f"{gets:,} GETs, {self.dollars(gets, size_bytes):,.2f} dollars"


def prices(text: str) -> Prices:
    """Return the prices in a text, such as "0.40,0.02".  Raises: ValueError."""
    found = Prices(*[float(price) for price in text.split(",", 1)])
    if not all(0 <= price < 1e9 for price in found):
        raise ValueError(text)
    return found


PRICES_HELP = (
    "what the store takes, for the costs that are told: dollars of a million GETs, and of 10^9 "
    "bytes (default: 0.40,0, as of S3 in its own region)"
)


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
