"""LitData's chunks of tokens, which litgpt writes: a count of items, where each begins, and the
items end to end. An item is a document. index.json beside the chunks has the type of tokens.

Layout: streaming/writer.py and TokensLoader in streaming/item_loader.py of
github.com/Lightning-AI/litData, and its constants.py for the codes of types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

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
    index = _index_of(file)
    return is_chunk(file) and index.how in _CODES and file.name in index.token_counts


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens are.  Raises: InvalidCorpus if they are no integers, or the file is
    no such chunk.
    """
    if not matches(file):
        problem = "is no chunk of LitData's tokens, or lacks the index.json that says so"
        raise InvalidCorpus(file.path, problem)
    index = _index_of(file)
    name = _CODES[index.how].get(int(index.code) if index.code.isdecimal() else -1)
    if name is None:
        problem = f"has items of the type {index.code} of LitData, no integers"
        raise InvalidCorpus(file.path, problem)
    count, dtype = int.from_bytes(file.head[:4], "little"), STORED[name]
    first = 8 + 4 * count
    tokens, rest = divmod(file.size_bytes - first, dtype.itemsize)
    if rest or not tokens or tokens != index.token_counts[file.name]:
        problem = f"{_INDEX} records {index.token_counts[file.name]} {name} tokens, but "
        problem += f"{file.size_bytes - first} bytes follow the offsets; it may be truncated"
        raise InvalidCorpus(file.path, problem)
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


class _Index(NamedTuple):
    """What an index says.

    how, code: how items are written, such as "no_header_tensor", and the code of their type; "" if
    they have several values.  token_counts: of each chunk of tokens, by its name; chunks of items
    that are more than tokens have none.
    """

    how: str = ""
    code: str = ""
    token_counts: Mapping[str, int] = MappingProxyType({})


def _index_of(file: OpenFile) -> _Index:
    """Return the index beside a chunk; one that says nothing if there is none."""
    path = os.path.join(os.path.dirname(file.path), _INDEX)
    try:
        status = os.stat(path)
    except OSError:
        return _Index()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _parsed(path: str, modified_ns: int, size_bytes: int) -> _Index:
    """Parse an index once for all of its chunks.  modified_ns, size_bytes: of the index."""
    try:
        with open(path, "rb") as index:
            content = json.load(index)
        (writer,) = content["config"]["data_format"]
        counts = {each["filename"]: each["dim"] for each in content["chunks"]}
        how, _, code = writer.partition(":")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _Index()
    return _Index(how, code, {name: dim for name, dim in counts.items() if type(dim) is int})
