"""Where the tokens of a file lie: what every format comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile
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
class FormatOptions:
    """What the user says of a dataset's files; where that is nothing, the files decide.

    format: one of the names in FORMATS.  dtype: of the tokens.  tensor: in a file that has several.
    """

    format: str | None = None
    dtype: Stored | None = None
    tensor: str | None = None

    @classmethod
    def parse(cls, format: str | None, dtype: str | None, tensor: str | None) -> FormatOptions:
        """Return what was said in words.  dtype: a key of STORED."""
        return cls(format, STORED[dtype] if dtype else None, tensor)


def all_tokens(name: str, file: OpenFile, options: FormatOptions, why: str) -> Layout:
    """Return the layout of a file without header.

    name: of the format.  why: it is taken for one.
    Raises: InvalidCorpus if it is empty or ends within a token.
    """
    dtype = options.dtype or STORED["uint16"]
    if file.size_bytes == 0:
        raise InvalidCorpus(file.path, "is empty")
    if file.size_bytes % dtype.itemsize:
        raise InvalidCorpus(
            file.path,
            f"{file.size_bytes} bytes are no whole number of {dtype.name} tokens; "
            "is it of another --dtype, or cut short?",
        )
    count = file.size_bytes // dtype.itemsize
    return Layout(name, dtype, 0, count, why, dtype_assumed=options.dtype is None)
