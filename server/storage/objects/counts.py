"""How many GETs this process has made, and for what: what an object store bills."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

ROW = "row"
"""Tokens of rows, and of their masks, which streams wait for."""
BLOCK = "block"
"""Tokens that are read in order, or for a fingerprint or a digest."""
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
