"""datatrove's .ds: raw tokens, beside them .ds.index (where documents end) and .ds.metadata.

Layout: src/datatrove/pipeline/tokens/tokenizer.py of github.com/huggingface/datatrove.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile, open_file
from .documents import Documents, Ends, require_ascending
from .layout import STORED, FormatOptions, Layout, Stored, all_tokens

NAME = "datatrove"
SUFFIX = ".ds"

_WIDTHS = {2: STORED["uint16"], 4: STORED["uint32"]}


def matches(file: OpenFile) -> bool:
    """Say whether it has datatrove's name, and was asked after all that begin in a known way."""
    return file.path.endswith(SUFFIX)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout, its type from .metadata, or from .index.  Raises: InvalidCorpus."""
    metadata, index = f"{file.path}.metadata", f"{file.path}.index"
    has_metadata, has_index = os.path.lexists(metadata), os.path.lexists(index)
    said, count = _metadata(metadata, file.size_bytes) if has_metadata else (None, None)
    if said is None and has_index:
        said = _width(_last_end(index), file.size_bytes)
    why = f"named *{SUFFIX}"
    if has_metadata or has_index:
        why = f"{os.path.basename(metadata if has_metadata else index)} beside it"
    found = all_tokens(NAME, file, replace(options, dtype=said or options.dtype), why)
    if count not in (None, found.token_count):
        problem = f"says {count} tokens, and the file has room for {found.token_count}; cut short?"
        raise InvalidCorpus(metadata, problem)
    if has_index:
        found = replace(found, documents=_documents(index, found.token_count))
    return found


def _metadata(path: str, file_bytes: int) -> tuple[Stored | None, int]:
    """Return the type of the tokens, where it can be known, and their number."""
    with open_file(path) as file:
        lines = file.head.decode("utf-8", "replace").splitlines()
    try:
        count = int(lines[1])
        if "|" not in lines[0]:  # as older versions wrote it
            return _width(count, file_bytes), count
        return _WIDTHS[int(lines[0].rpartition("|")[2])], count
    except (IndexError, KeyError, ValueError):
        raise InvalidCorpus(
            path,
            "has to say TOKENIZER|2 or TOKENIZER|4 and, on its second line, a number of tokens",
        ) from None


def _width(count: int, file_bytes: int) -> Stored | None:
    """Return the type of so many tokens in so many bytes, if there is one."""
    return next((dtype for width, dtype in _WIDTHS.items() if width * count == file_bytes), None)


def _last_end(path: str) -> int:
    with open_file(path) as file:
        last = file.read(file.size_bytes - 8, 8) if file.size_bytes > 7 else b""
    return int.from_bytes(last, "little")


def _documents(path: str, token_count: int) -> Documents:
    """Check where documents end, and return what reads it.  Raises: InvalidCorpus."""
    count = require_ascending(path, _ends(path), token_count, all_of_it=True)
    return Documents(count, path, partial(_ends, path))


def _ends(path: str) -> Iterator[Ends]:
    with open_file(path) as file:
        if file.size_bytes % 8:
            raise InvalidCorpus(path, f"{file.size_bytes} bytes are no whole number of uint64")
        # An end at or above 2^63 is negative here, and so does not ascend.
        yield from file.array(0, file.size_bytes // 8, "<u8")
