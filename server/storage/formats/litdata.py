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

from ..door import Entry, entry, open_file
from ..layout import STORED, Documents, Ends, Layout
from ..open_file import OpenFile
from .format_options import FormatOptions, is_chunk, require_ascending

NAME = "litdata"

_INDEX = "index.json"
_NUMPY = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TORCH = ("uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "", "uint16")
_CODES = {
    "no_header_numpy": dict(enumerate(_NUMPY)), "no_header_tensor": dict(enumerate(_TORCH, 11))
}  # fmt: skip
"""Names of the types of tokens, by how items are written and the code of the type."""


def matches(file: OpenFile) -> bool:
    """Return whether it is such a chunk, and the index says that its items are tokens."""
    if not is_chunk(file):
        return False
    writer, counts = _index_of(file)
    return writer.partition(":")[0] in _CODES and file.name in counts


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens are.  Raises: InvalidCorpus if they are no integers."""
    if not matches(file):
        problem = "is no chunk of LitData's tokens, or lacks the index.json that says so"
        raise InvalidCorpus(file.path, problem)
    writer, counts = _index_of(file)
    how, _, code = writer.partition(":")
    name = _CODES[how].get(int(code) if code.isdecimal() else -1)
    if not name:
        raise InvalidCorpus(file.path, f"has items of the type {code} of LitData, no integers")
    count, dtype = int.from_bytes(file.head[:4], "little"), STORED[name]
    first = 8 + 4 * count
    tokens, rest = divmod(file.size_bytes - first, dtype.itemsize)
    if rest or not tokens or tokens != counts[file.name]:
        problem = (
            f"{_INDEX} records {counts[file.name]} {name} tokens, but {file.size_bytes - first}"
        )
        raise InvalidCorpus(file.path, f"{problem} bytes follow the offsets; it may be truncated")
    ends = partial(_ends, file.path, count, dtype.itemsize)
    require_ascending(file.path, ends(), tokens, all_of_it=True)
    why, documents = f"{_INDEX} of LitData", Documents(count, file.path, ends)
    return Layout(NAME, dtype, first, tokens, why, documents=documents)


def _ends(path: str, count: int, token_bytes: int) -> Iterator[Ends]:
    """Yield where items end, in tokens.  Raises: InvalidCorpus."""
    with open_file(path) as file:
        for offsets in file.array(8, count, "<u4"):
            offsets -= 8 + 4 * count
            if (offsets % token_bytes).any():
                raise InvalidCorpus(path, "has an item that ends within a token")
            yield offsets // token_bytes


def _index_of(file: OpenFile) -> tuple[str, dict[str, int]]:
    """Return how items are written, such as "no_header_tensor:16", and the token counts of chunks
    of nothing else, by their names; "" and none if there is no index.
    """
    path = os.path.join(os.path.dirname(file.path), _INDEX)
    found = entry(path)
    return ("", {}) if found is None else _parsed(found)


@lru_cache(maxsize=1)
def _parsed(index: Entry) -> tuple[str, dict[str, int]]:
    """Parse an index once for all of its chunks."""
    try:
        with open_file(index.path) as file:
            content = json.loads(file.read(0, file.size_bytes))
        (writer,) = content["config"]["data_format"]
        counts = {each["filename"]: each["dim"] for each in content["chunks"]}
    except (InvalidCorpus, ValueError, TypeError, KeyError, RecursionError):
        return "", {}
    return str(writer), {name: dim for name, dim in counts.items() if type(dim) is int}
