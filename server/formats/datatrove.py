"""datatrove's .ds: raw tokens, beside them .ds.index (where documents end) and .ds.metadata.

Layout: src/datatrove/pipeline/tokens/tokenizer.py of github.com/huggingface/datatrove.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tokenfeed.errors import BadCorpus

from ..files import OpenFile, open_file
from .documents import Documents, Ends, require_ascending
from .layout import STORED, Asked, Layout, Stored
from .raw import all_tokens

NAME = "datatrove"
SUFFIX = ".ds"

_WIDTHS = {2: STORED["uint16"], 4: STORED["uint32"]}


def recognises(file: OpenFile) -> bool:
    """Say whether it has datatrove's name, or one of its companions beside it."""
    beside = (f"{file.path}.index", f"{file.path}.metadata")
    return file.path.endswith(SUFFIX) or any(map(os.path.exists, beside))


def layout(file: OpenFile, asked: Asked) -> Layout:
    """Return the layout, its type from .metadata, or from .index.  Raises: BadCorpus."""
    metadata, index = f"{file.path}.metadata", f"{file.path}.index"
    has_metadata, has_index = os.path.exists(metadata), os.path.exists(index)
    said, count = _metadata(metadata) if has_metadata else (None, None)
    if said is None and has_index:
        said = _width(index, file.size_bytes)
    why = f"named *{SUFFIX}"
    if has_metadata or has_index:
        why = f"{os.path.basename(metadata if has_metadata else index)} beside it"
    found = all_tokens(NAME, file, replace(asked, dtype=said or asked.dtype), why)
    if count not in (None, found.token_count):
        problem = f"says {count} tokens, and the file has room for {found.token_count}; cut short?"
        raise BadCorpus(metadata, problem)
    if has_index:
        found = replace(found, documents=_documents(index, found.token_count))
    return found


def _metadata(path: str) -> tuple[Stored | None, int]:
    """Return the type of the tokens, None where an old file does not say, and their number."""
    with open_file(path) as file:
        lines = file.head.decode("utf-8", "replace").splitlines()
    try:
        width = lines[0].rpartition("|")[2] if "|" in lines[0] else None
        return (None if width is None else _WIDTHS[int(width)]), int(lines[1])
    except (IndexError, KeyError, ValueError):
        raise BadCorpus(
            path,
            "has to say TOKENIZER|2 or TOKENIZER|4 and, on its second line, a number of tokens",
        ) from None


def _width(path: str, file_bytes: int) -> Stored | None:
    """Return the type whose tokens end where the last document does, if there is one."""
    with open_file(path) as file:
        last = (
            int.from_bytes(file.read(file.size_bytes - 8, 8), "little")
            if file.size_bytes > 7
            else 0
        )
    return next((dtype for width, dtype in _WIDTHS.items() if width * last == file_bytes), None)


def _documents(path: str, token_count: int) -> Documents:
    """Check where documents end, and return what reads it.  Raises: BadCorpus."""
    count = require_ascending(path, _ends(path), token_count, all_of_it=True)
    return Documents(count, path, partial(_ends, path))


def _ends(path: str) -> Iterator[Ends]:
    with open_file(path) as file:
        if file.size_bytes % 8:
            raise BadCorpus(path, f"{file.size_bytes} bytes are no whole number of uint64")
        # An end at or above 2^63 is negative here, and so does not ascend.
        yield from file.array(0, file.size_bytes // 8, "<u8")
