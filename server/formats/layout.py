"""Where the tokens of a file lie: what every format comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .documents import Documents

Stored = np.dtype[np.integer]

STORED: dict[str, Stored] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
}
"""What tokens may be stored as, by the name that is part of a fingerprint."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One run of tokens in a file.

    format: its name.  dtype: as stored, one of STORED.  first_byte: where the first token begins.
    token_count: at least 1.  why: what it was recognised by.  dtype_assumed: whether nothing said
    it.  documents: None where nothing is known of them.
    """

    format: str
    dtype: Stored
    first_byte: int
    token_count: int
    why: str
    dtype_assumed: bool = False
    documents: Documents | None = None

    @property
    def content_bytes(self) -> int:
        """Bytes of the tokens, without header."""
        return self.token_count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of a dataset's files; where that is nothing, the files decide.

    format: one of the names in FORMATS.  dtype: of the tokens.  tensor: in a file that has several.
    """

    format: str | None = None
    dtype: Stored | None = None
    tensor: str | None = None
