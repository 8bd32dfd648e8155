"""Chunks of litgpt before 2024 and of TinyLlama: a header of 24 bytes (magic, version, type, token
count), tokens. The last chunk of a corpus is filled up with tokens that separate documents.

Layout: PackedDatasetBuilder in lit_gpt/packed_dataset.py of github.com/Lightning-AI/litgpt.
"""

from __future__ import annotations

import struct

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Layout
from ..open_file import OpenFile
from .format_options import FormatOptions

NAME = "litgpt"

_MAGIC = b"LITPKDS"
_HEADER = struct.Struct("<7sQBQ")
_VERSION = 1
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""By the code of a type. 6 and 7 are floats."""


def matches(file: OpenFile) -> bool:
    """Return whether it begins with the magic of these chunks."""
    return file.head.startswith(_MAGIC)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tokens are.  Raises: InvalidCorpus if the header does not fit the file."""
    if len(file.head) < _HEADER.size:
        problem = f"has {len(file.head)} bytes, fewer than the header of a chunk of litgpt"
        raise InvalidCorpus(file.path, f"{problem}, {_HEADER.size}")
    magic, version, code, count = _HEADER.unpack_from(file.head)
    if magic != _MAGIC or version != _VERSION:
        raise InvalidCorpus(file.path, f"has no header of litgpt's version {_VERSION}")
    if code not in _TYPES:
        raise InvalidCorpus(file.path, f"has the type {code} of litgpt, which is no integer")
    dtype = STORED[_TYPES[code]]
    held = file.size_bytes - _HEADER.size
    if count < 1 or count * dtype.itemsize != held:
        problem = f"its header records {count} {dtype.name} tokens, but {held} bytes follow"
        raise InvalidCorpus(file.path, f"{problem}; it may be truncated")
    return Layout(NAME, dtype, _HEADER.size, count, "header of litgpt")
