"""datatrove's .ds: raw tokens, with a .ds.index (where documents end) and a .ds.metadata.

Layout: src/datatrove/pipeline/tokens/tokenizer.py of github.com/huggingface/datatrove.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tokenfeed.errors import InvalidCorpus

from ..door import exists, open_file
from ..layout import STORED, Documents, Ends, Layout, Stored
from ..open_file import OpenFile
from .format_options import FormatOptions, all_tokens, require_ascending

NAME = "datatrove"
SUFFIX = ".ds"

_WIDTHS = {2: STORED["uint16"], 4: STORED["uint32"]}


def matches(file: OpenFile) -> bool:
    """Return whether it is named like datatrove's files; formats with a magic are tried before."""
    return file.path.endswith(SUFFIX)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout; its type comes from .metadata or .index.  Raises: InvalidCorpus."""
    metadata, index = f"{file.path}.metadata", f"{file.path}.index"
    has_metadata, has_index = exists(metadata), exists(index)
    dtype, count = _metadata(metadata, file.size_bytes) if has_metadata else (None, None)
    if dtype is None and has_index:
        dtype = _width(_last_end(index), file.size_bytes)
    why = f"named *{SUFFIX}"
    if has_metadata or has_index:
        why = f"{os.path.basename(metadata if has_metadata else index)} beside it"
    found = all_tokens(NAME, file, replace(options, dtype=dtype or options.dtype), why)
    if count not in (None, found.token_count):
        problem = f"records {count} tokens, but {file.name} has {found.token_count}"
        raise InvalidCorpus(metadata, f"{problem}; one of them may be truncated")
    if has_index:
        found = replace(found, documents=_documents(index, found.token_count))
    return found


def _metadata(path: str, file_bytes: int) -> tuple[Stored | None, int]:
    """Return the type of the tokens, None if it is unknown, and their number."""
    with open_file(path) as file:
        lines = file.head.decode("utf-8", "replace").splitlines()
    try:
        count = int(lines[1])
        if "|" not in lines[0]:  # written by an older version
            return _width(count, file_bytes), count
        return _WIDTHS[int(lines[0].rpartition("|")[2])], count
    except (IndexError, KeyError, ValueError):
        raise InvalidCorpus(
            path,
            "needs TOKENIZER|2 or TOKENIZER|4 in line 1, and the number of tokens in line 2",
        ) from None


def _width(count: int, file_bytes: int) -> Stored | None:
    """Return the type of count tokens in file_bytes bytes, None if no type fits."""
    return next((dtype for width, dtype in _WIDTHS.items() if width * count == file_bytes), None)


def _last_end(path: str) -> int:
    with open_file(path) as file:
        last = file.read(file.size_bytes - 8, 8) if file.size_bytes > 7 else b""
    return int.from_bytes(last, "little")


def _documents(path: str, token_count: int) -> Documents:
    """Check where documents end, and return them.  Raises: InvalidCorpus."""
    count = require_ascending(path, _ends(path), token_count, all_of_it=True)
    return Documents(count, path, partial(_ends, path))


def _ends(path: str) -> Iterator[Ends]:
    with open_file(path) as file:
        if file.size_bytes % 8:
            raise InvalidCorpus(path, f"has {file.size_bytes} bytes, not a multiple of 8 (uint64)")
        # An end at or above 2^63 is negative here, so it does not ascend.
        yield from file.array(0, file.size_bytes // 8, "<u8")
