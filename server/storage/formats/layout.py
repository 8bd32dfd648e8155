"""Where the tokens of a file are: the result of every format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile
from .documents import Documents

Stored = np.dtype[np.integer]

ROW_OPTION = "--row-tokens"
ROW_TOKENS_MIN, ROW_TOKENS_MAX = 2, (1 << 31) - 1

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


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The user's options for the files of a dataset; None where the files decide.

    format: one of the names in FORMATS.  dtype: of the tokens.  tensor: name of one of several.
    row_tokens: at least 2, tokens of each row of files that were packed into rows.
    are_flags: whether it is a loss mask, whose bytes may be of other types.
    """

    format: str | None = None
    dtype: Stored | None = None
    tensor: str | None = None
    row_tokens: int | None = None
    are_flags: bool = False

    @classmethod
    def parse(
        cls,
        format: str | None,
        dtype: str | None,
        tensor: str | None,
        row_tokens: int | None = None,
    ) -> FormatOptions:
        """Parse options.  dtype: a key of STORED."""
        return cls(format, STORED[dtype] if dtype else None, tensor, row_tokens)

    @property
    def words(self) -> tuple[str, ...]:
        """The options of a command line, without the tensor."""
        given = {
            "--format": self.format,
            "--dtype": self.dtype.name if self.dtype else None,
            ROW_OPTION: self.row_tokens,
        }
        return tuple(f"{option} {value}" for option, value in given.items() if value)


class NoTokens(InvalidCorpus):
    """A file with a header and nothing behind it: no other format would have more."""


def all_tokens(name: str, file: OpenFile, options: FormatOptions, why: str) -> Layout:
    """Return the layout of a file without header.

    name: of the format.  why: how it was recognized.
    Raises: InvalidCorpus if it is empty or ends within a token.
    """
    dtype = options.dtype or STORED["uint16"]
    if file.size_bytes == 0:
        raise InvalidCorpus(file.path, "is empty")
    if file.size_bytes % dtype.itemsize:
        raise InvalidCorpus(
            file.path,
            f"has {file.size_bytes} bytes, not a multiple of {dtype.itemsize} ({dtype.name}); "
            "it is truncated, or has another type (--dtype, unless metadata records it)",
        )
    count = file.size_bytes // dtype.itemsize
    return Layout(name, dtype, 0, count, why, dtype_assumed=options.dtype is None)


def is_chunk(file: OpenFile) -> bool:
    """Return whether a file is a count, offsets and items, as in the shards of MosaicML and
    LitData.
    """
    count, first = int.from_bytes(file.head[:4], "little"), int.from_bytes(file.head[4:8], "little")
    offsets_end = 8 + 4 * count
    if len(file.head) < 8 or not count or not offsets_end <= first <= file.size_bytes:
        return False
    return file.read(offsets_end - 4, 4) == file.size_bytes.to_bytes(8, "little")[:4]
