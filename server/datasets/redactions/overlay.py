"""Tokens as they are once some of them are erased, whether or not they are erased yet.

What is read of them does not depend on which files are replaced already. So an erasure knows its
result beforehand, and a dataset is the same one before, while and after its files are replaced.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...storage.formats import Stored
from ...storage.store import TokenStore
from .list_format import ErasedFile, ListContent
from .ranges import TokenRanges

Read = Callable[[int, int, int], bytes]
"""`read` or `read_served` of a TokenStore."""


class Overlay:
    """Reads bytes of tokens, with one token in place of those in some ranges."""

    def __init__(self, read: Read, ranges: TokenRanges, fill: int, stored: Stored) -> None:
        """read: of a store.  stored: type of its tokens, which holds fill."""
        self._read = read
        self._ranges = ranges
        self._token_bytes = stored.itemsize
        self._firsts = ranges.first_tokens * self._token_bytes
        self._ends = ranges.end_tokens * self._token_bytes
        self._fill = np.array([fill], dtype=stored).tobytes()

    def read(self, file: int, first_byte: int, size_bytes: int) -> bytes:
        """Return bytes of a file, counted from its first token.  Raises: what `read` raises."""
        return self._over(self._read(file, first_byte, size_bytes), file, first_byte)

    def _over(self, content: bytes, file: int, first_byte: int) -> bytes:
        """Return bytes of a file, which begin at one of its bytes, as they are once erased."""
        end_byte = first_byte + len(content)
        of_file = slice(*np.searchsorted(self._ranges.files, (file, file + 1)))
        firsts, ends = self._firsts[of_file], self._ends[of_file]
        first = np.searchsorted(ends, first_byte, side="right")
        end = np.searchsorted(firsts, end_byte)
        if first >= end:
            return content
        changed = bytearray(content)
        for begin, stop in zip(firsts[first:end].tolist(), ends[first:end].tolist(), strict=True):
            begin, stop = max(begin, first_byte), min(stop, end_byte)
            changed[begin - first_byte : stop - first_byte] = self._filled(begin, stop)
        return bytes(changed)

    def _filled(self, first_byte: int, end_byte: int) -> bytes:
        """Return the bytes of erased tokens, which may begin or end within one."""
        skipped = first_byte % len(self._fill)
        tokens = -(-(skipped + end_byte - first_byte) // len(self._fill))
        return (self._fill * tokens)[skipped : skipped + end_byte - first_byte]

    def is_erased(self, file: int) -> bool:
        """Return whether a file has the fill in place of all its ranges.  Raises: what `read`
        raises.
        """
        for _, first, end in self._ranges.of_file(file).blocks(self._token_bytes):
            content = self._read(file, first, end - first)
            if self._over(content, file, first) != content:
                return False
        return True


def files_left(store: TokenStore, content: ListContent) -> list[ErasedFile]:
    """Return the files that still have tokens which a list says are erased.

    store: of the dataset, of which the erased ranges are read.  Raises: InvalidCorpus.
    """
    if content.erasure is None:
        return []
    over = overlay_of(store, store.files.read, content)
    return [one for one in content.erasure.files if not over.is_erased(one.file)]


def overlay_of(store: TokenStore, read: Read, content: ListContent) -> Overlay:
    """Return what lays the erased ranges of a list over its dataset.  content: with an erasure."""
    assert content.erasure is not None
    return Overlay(read, content.erasure.ranges, content.fill, store.stored)
