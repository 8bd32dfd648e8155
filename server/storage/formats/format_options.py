"""The user's options for the files of a dataset, and checks that several formats share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Ends, Layout, Stored
from ..open_file import OpenFile
from ..option_names import DTYPE, FORMAT, ROW_TOKENS

_LOG = logging.getLogger("tokenfeed.server")

ROW_TOKENS_MIN, ROW_TOKENS_MAX = 2, (1 << 31) - 1
_PROGRESS_SECONDS = 5.0


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
            FORMAT: self.format,
            DTYPE: self.dtype.name if self.dtype else None,
            ROW_TOKENS: self.row_tokens,
        }
        return tuple(option.to(value) for option, value in given.items() if value)


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
            f"it is truncated, or has another type ({DTYPE}, unless metadata records it)",
            DTYPE,
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


def require_ascending(
    path: str, blocks: Iterable[Ends], last: int, *, first: int | None = None, all_of_it: bool
) -> int:
    """Return how many ends there are; logs progress.

    last: the maximum of all ends.  first: what the first end has to be, None for anything.
    all_of_it: whether the last end has to be `last`.
    Raises: InvalidCorpus, naming path, if an end is below the one before it or above `last`.
    """
    count = end = 0
    logged_at = time.monotonic()
    for ends in blocks:
        if first not in (None, int(ends[0])) and not count:
            raise InvalidCorpus(path, f"the first document begins at {ends[0]}, not at {first}")
        if ends[0] < end or (ends[1:] < ends[:-1]).any() or ends[-1] > last:
            raise InvalidCorpus(path, f"document ends have to ascend and be at most {last}")
        if count > last:  # Empty documents alone would make this unlimited.
            raise InvalidCorpus(path, f"has more than {count} documents; the limit is {last}")
        count, end = count + ends.size, int(ends[-1])
        if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            _LOG.info("reading documents file=%s done=%.1f%%", path, 100 * end / max(last, 1))
    if all_of_it and end != last:
        problem = f"the last document ends at {end}, not at {last}"
        raise InvalidCorpus(path, f"{problem}; the index or the tokens may be truncated")
    return count
