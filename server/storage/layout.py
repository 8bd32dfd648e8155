"""Where the tokens of a file are, and its documents: what every format finds out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Stored = np.dtype[np.integer]

Ends = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a file.

    count: how many.  path: of their index.  ends: rereads the index and yields, in blocks, where
    documents end: in tokens, exclusive, ascending.  pairs: like ends, but yields two numbers for
    each document, its first token and its end; None if each document begins where the one before it
    ends, and the first one at 0.
    """

    count: int
    path: str
    ends: Callable[[], Iterator[Ends]]
    pairs: Callable[[], Iterator[Ends]] | None = None


STORED: dict[str, Stored] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
}
"""The types of stored tokens, by the name that is part of a fingerprint."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One run of tokens in a file.

    format: its name.  dtype: as stored, one of STORED.  first_byte: where the first token begins.
    token_count: at least 1.  why: how the format was recognized.  dtype_assumed: whether the type
    was recorded nowhere.  documents: None if they are unknown.  row_tokens: tokens of each row, if
    the file is rows that do not overlap; None for a text that windows are cut from.
    """

    format: str
    dtype: Stored
    first_byte: int
    token_count: int
    why: str
    dtype_assumed: bool = False
    documents: Documents | None = None
    row_tokens: int | None = None

    @property
    def content_bytes(self) -> int:
        """Bytes of the tokens, without header."""
        return self.token_count * self.dtype.itemsize
