"""llm.c and modded-nanogpt: a header of 256 int32 (magic, version, token count, zeros), tokens.

Llama-3 shards have another magic and uint32 tokens. Layout: dev/data/data_common.py and
llmc/dataloader.h of github.com/karpathy/llm.c.
"""

from __future__ import annotations

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Layout, Stored
from ..open_file import OpenFile
from .format_options import FormatOptions, NoTokens

NAME = "llm.c"

_HEADER_BYTES = 1024
_TOKENS: dict[int, tuple[int, Stored]] = {
    20240520: (1, STORED["uint16"]),
    20240801: (7, STORED["uint32"]),
}
"""Magic -> version and type of the tokens."""
_OTHERS = {
    20240328: "a tokenizer",
    20240522: "evaluation examples",
    20240527: "a training state",
}


def matches(file: OpenFile) -> bool:
    """Return whether it begins with one of llm.c's magic numbers."""
    magic = int.from_bytes(file.head[:4], "little")
    return magic in _TOKENS or magic in _OTHERS


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens are.  Raises: InvalidCorpus if the header does not fit the file."""
    if len(file.head) < _HEADER_BYTES:
        raise InvalidCorpus(
            file.path, f"has {len(file.head)} bytes, fewer than llm.c's header of {_HEADER_BYTES}"
        )
    header = np.frombuffer(file.head, "<i4", 256)
    magic, version, count = (int(number) for number in header[:3])
    if magic in _OTHERS:
        raise InvalidCorpus(file.path, f"holds {_OTHERS[magic]} of llm.c, not training tokens")
    if magic not in _TOKENS:
        raise InvalidCorpus(
            file.path, f"begins with {magic}, not with llm.c's {' or '.join(map(str, _TOKENS))}"
        )
    known_version, dtype = _TOKENS[magic]
    if version != known_version:
        raise InvalidCorpus(
            file.path,
            f"has llm.c's magic {magic} and version {version}, not {known_version}",
        )
    if header[3:].any():
        raise InvalidCorpus(
            file.path,
            f"has llm.c's magic {magic}, but its header has more than zeros after the token count",
        )
    held = file.size_bytes - _HEADER_BYTES
    if count == held == 0:
        raise NoTokens(file.path, "has llm.c's header and no tokens; leave it out")
    if count < 1 or count * dtype.itemsize != held:
        problem = f"its header records {count} {dtype.name} tokens, but {held} bytes follow"
        raise InvalidCorpus(file.path, f"{problem}; it may be truncated")
    return Layout(NAME, dtype, _HEADER_BYTES, count, f"header with magic {magic}")
