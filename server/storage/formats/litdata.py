"""LitData's chunks of tokens, which litgpt writes: a count of items, where each begins, and the
items end to end. An item is a document. index.json beside the chunks has the type of tokens.

Layout: streaming/writer.py and TokensLoader in streaming/item_loader.py of
github.com/Lightning-AI/litData, and its constants.py for the codes of types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache, partial

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile, open_file
from .documents import Documents, Ends, require_ascending
from .layout import STORED, FormatOptions, Layout

NAME = "litdata"

_INDEX = "index.json"
_NUMPY = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TORCH = {11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32"}
_TORCH |= {17: "int64", 18: "int64", 20: "uint16"}
_CODES = {"no_header_numpy": dict(enumerate(_NUMPY)), "no_header_tensor": _TORCH}
"""Names of the types of tokens, by how items are written and the code of the type."""


def is_chunk(file: OpenFile) -> bool:
    """Return whether a file is a count, offsets and items, as MosaicML's shards and these are."""
    count, first = (int.from_bytes(file.head[at : at + 4], "little") for at in (0, 4))
    offsets_end = 8 + 4 * count
    if len(file.head) < 8 or not count or not offsets_end <= first <= file.size_bytes:
        return False
    return file.read(offsets_end - 4, 4) == file.size_bytes.to_bytes(8, "little")[:4]


def matches(file: OpenFile) -> bool:
    """Return whether it is such a chunk, and the index says that its items are tokens."""
    return is_chunk(file) and _writer(file).partition(":")[0] in _CODES


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens are.  Raises: InvalidCorpus if they are no integers, or the file is
    no such chunk.
    """
    writer, _, code = _writer(file).partition(":")
    if not is_chunk(file) or writer not in _CODES:
        problem = "is no chunk of LitData's tokens, or lacks the index.json that says so"
        raise InvalidCorpus(file.path, problem)
    name = _CODES[writer].get(int(code) if code.isdecimal() else -1)
    if name is None:
        raise InvalidCorpus(file.path, f"has items of the type {code} of LitData, no integers")
    count, dtype = int.from_bytes(file.head[:4], "little"), STORED[name]
    first = 8 + 4 * count
    tokens, rest = divmod(file.size_bytes - first, dtype.itemsize)
    if rest or not tokens:
        raise InvalidCorpus(file.path, f"has no whole number of {name} tokens; it may be truncated")
    ends = partial(_ends, file.path, count, dtype.itemsize)
    require_ascending(file.path, ends(), tokens, all_of_it=True)
    documents = Documents(count, file.path, ends)
    return Layout(NAME, dtype, first, tokens, f"{_INDEX} of LitData", documents=documents)


def _ends(path: str, count: int, token_bytes: int) -> Iterator[Ends]:
    """Yield where items end, in tokens.  Raises: InvalidCorpus."""
    with open_file(path) as file:
        for offsets in file.array(8, count, "<u4"):
            offsets -= 8 + 4 * count
            if (offsets % token_bytes).any():
                raise InvalidCorpus(path, "has an item that ends within a token")
            yield offsets // token_bytes


def _writer(file: OpenFile) -> str:
    """Return how the index says that items are written, such as "no_header_tensor:16"; "" if there
    is none, or items have several values.
    """
    path = os.path.join(os.path.dirname(file.path), _INDEX)
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return _format(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _format(path: str, modified_ns: int, size_bytes: int) -> str:
    """Parse an index once for all of its chunks.  modified_ns, size_bytes: of the index."""
    try:
        with open(path, "rb") as index:
            (found,) = json.load(index)["config"]["data_format"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return str(found)
