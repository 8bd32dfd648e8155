"""Megatron's indexed dataset: raw tokens in X.bin; their type, sequences and documents in X.idx.

Layout: megatron/core/datasets/indexed_dataset.py of github.com/NVIDIA/Megatron-LM. Sequences are
end to end, so X.bin is one run of tokens. A document is one or more sequences.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..door import exists, open_file
from ..layout import STORED, Documents, Ends, Layout, Stored
from ..open_file import OpenFile
from .format_options import FormatOptions, require_ascending

NAME = "megatron"
_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class _Index(NamedTuple):
    dtype: Stored
    sequences: int
    places: int
    pointers_at: int
    places_at: int


def matches(file: OpenFile) -> bool:
    """Return whether an index is beside it."""
    return file.path.endswith(".bin") and exists(_index_path(file.path))


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout by the index.  Raises: InvalidCorpus if the index does not fit the file."""
    path = _index_path(file.path)
    with open_file(path) as index:
        header = _read_header(index)
        _require_end_to_end(index, header, file.size_bytes)
        places = index.array(header.places_at, header.places, "<i8")
        require_ascending(path, places, header.sequences, first=0, all_of_it=True)
    documents = Documents(header.places - 1, path, partial(_ends, path, header, file.size_bytes))
    count = file.size_bytes // header.dtype.itemsize
    return Layout(NAME, header.dtype, 0, count, f"{index.name} beside it", documents=documents)


def _index_path(path: str) -> str:
    return path.removesuffix(".bin") + ".idx"


def _read_header(index: OpenFile) -> _Index:
    magic, version, code, sequences, places = _HEADER.unpack(index.read(0, _HEADER.size))
    if magic != _MAGIC or version != 1:
        raise InvalidCorpus(index.path, f"begins with {magic!r}, version {version}, not version 1")
    if code not in _CODES:
        raise InvalidCorpus(index.path, f"has token type {code}, not {', '.join(_CODES.values())}")
    pointers_at = _HEADER.size + 4 * sequences
    places_at = pointers_at + 8 * sequences
    size = places_at + 8 * places
    # Multimodal datasets have one more byte for each sequence.
    if index.size_bytes not in (size, size + sequences) or not sequences or not places:
        problem = f"{sequences} sequences and {places} document offsets need {size} bytes"
        raise InvalidCorpus(index.path, f"{problem}, not {index.size_bytes}; it may be truncated")
    return _Index(STORED[_CODES[code]], sequences, places, pointers_at, places_at)


def _require_end_to_end(index: OpenFile, header: _Index, file_bytes: int) -> None:
    end = 0
    lengths = index.array(_HEADER.size, header.sequences, "<i4")
    pointers = index.array(header.pointers_at, header.sequences, "<i8")
    for length, first in zip(lengths, pointers, strict=True):
        ends = end + np.cumsum(length) * header.dtype.itemsize
        if (length < 0).any() or first[0] != end or (first[1:] != ends[:-1]).any():
            raise InvalidCorpus(index.path, "its sequences are not end to end")
        end = int(ends[-1])
    if end != file_bytes or not end:
        problem = f"its sequences have {end} bytes, but the token file has {file_bytes}"
        raise InvalidCorpus(index.path, f"{problem}; one of them may be truncated")


def _ends(path: str, header: _Index, file_bytes: int) -> Iterator[Ends]:
    """Yield where documents end, which is where the first sequence of the next one begins."""
    with open_file(path) as index:
        for places in index.array(header.places_at + 8, header.places - 1, "<i8"):
            ends = np.full(places.size, file_bytes)
            for first in np.unique(places // places.size) * places.size:
                count = min(places.size, header.sequences - first)
                low, high = np.searchsorted(places, (first, first + count))
                for begins in index.array(header.pointers_at + 8 * first, count, "<i8"):
                    ends[low:high] = begins[places[low:high] - first]
            yield ends // header.dtype.itemsize
