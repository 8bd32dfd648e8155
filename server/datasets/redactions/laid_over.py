"""Tokens as they are once some of them are erased, whether or not they are erased yet.

What is read of them does not depend on how far an erasure has got. So a server can tell that its
files have no other change while tokens are erased, and an erasure knows its result beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...storage.formats import Stored
from ...storage.store import TokenStore
from .list_file import RedactionLists
from .ranges import TokenRanges

Read = Callable[[int, int, int], bytes]
"""`read` or `read_served` of a TokenStore."""


class LaidOver:
    """Reads bytes of tokens, with one token in place of those in some ranges."""

    def __init__(self, read: Read, ranges: TokenRanges, fill: int, stored: Stored) -> None:
        """read: of a store.  stored: type of its tokens, which holds fill."""
        self._read = read
        token_bytes = stored.itemsize
        self._firsts = ranges.first_tokens * token_bytes
        self._ends = ranges.end_tokens * token_bytes
        self._files = ranges.files
        self._fill = np.array([fill], dtype=stored).tobytes()

    def read(self, file: int, first_byte: int, size_bytes: int) -> bytes:
        """Return bytes of a file, counted from its first token.  Raises: what `read` raises."""
        content = self._read(file, first_byte, size_bytes)
        of_file = slice(*np.searchsorted(self._files, (file, file + 1)))
        firsts, ends = self._firsts[of_file], self._ends[of_file]
        first = np.searchsorted(ends, first_byte, side="right")
        end = np.searchsorted(firsts, first_byte + size_bytes)
        if first >= end:
            return content
        changed = bytearray(content)
        for begin, stop in zip(firsts[first:end].tolist(), ends[first:end].tolist(), strict=True):
            begin, stop = max(begin, first_byte), min(stop, first_byte + size_bytes)
            changed[begin - first_byte : stop - first_byte] = self.filled(begin, stop)
        return bytes(changed)

    def filled(self, first_byte: int, end_byte: int) -> bytes:
        """Return the bytes of erased tokens, which may begin or end within one."""
        skipped = first_byte % len(self._fill)
        tokens = -(-(skipped + end_byte - first_byte) // len(self._fill))
        return (self._fill * tokens)[skipped : skipped + end_byte - first_byte]


def expected_content(
    lists: RedactionLists | None, store: TokenStore, fingerprint: bytes
) -> tuple[bytes, Read]:
    """Return the fingerprint that the content of a served store has to have now, and how to read it
    for that.

    fingerprint: before any erasure.
    """
    content = None if lists is None else lists.content_now()
    if content is None or content.erasure is None:
        return fingerprint, store.read_served
    erasure = content.erasure
    over = LaidOver(store.read_served, erasure.ranges, content.fill, store.stored)
    return erasure.fingerprint, over.read
