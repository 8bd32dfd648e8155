"""One integer tensor of a safetensors file, 1-D or 2-D: the only one, or the one that is named.

Layout: the length of a JSON header (uint64), the header, the tensors:
github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokenfeed.errors import InvalidCorpus

from ..layout import STORED, Layout
from ..open_file import OpenFile
from .format_options import FormatOptions

NAME = "safetensors"
SUFFIX = ".safetensors"

_FORMAT_HEADER_BYTES_MAX = 100_000_000
_HEADER_BYTES_MAX = 1 << 20
"""The format allows more. A header of a thousand tensors needs a tenth of this."""
_TYPES = {
    "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
}  # fmt: skip


def matches(file: OpenFile) -> bool:
    """Return whether it begins with a plausible length and an object, or is named so."""
    length = int.from_bytes(file.head[:8], "little")
    begins = file.head[8:9] == b"{" and file.head[9:10] in b' \t\r\n"}'
    return (begins and 2 <= length <= _FORMAT_HEADER_BYTES_MAX) or file.path.endswith(SUFFIX)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return where the tensor is.  Raises: InvalidCorpus if it is missing or truncated."""
    length = int.from_bytes(file.head[:8], "little")
    if len(file.head) < 8 or length > file.size_bytes - 8:
        raise InvalidCorpus(file.path, f"records a header of {length} bytes, and is truncated")
    if length > _HEADER_BYTES_MAX:
        raise InvalidCorpus(
            file.path, f"records a header of {length} bytes; the limit is {_HEADER_BYTES_MAX}"
        )
    try:
        header = json.loads(file.read(8, length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        integers = {name: entry for name, entry in tensors.items() if entry["dtype"] in _TYPES}
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise InvalidCorpus(file.path, "has an invalid safetensors header") from error
    name = options.tensor
    if name is None:
        if not integers:
            raise InvalidCorpus(file.path, "has no tensor of integers, so it has no tokens")
        if len(integers) != 1:
            problem = f"has {len(integers)} integer tensors ({_some(integers)}); name one"
            raise InvalidCorpus(file.path, f"{problem}: {file.path}#NAME")
        (name,) = integers
    if name not in integers:
        raise InvalidCorpus(file.path, f"has no integer tensor {name!r}; it has {_some(integers)}")
    return _placed(file, name, integers[name], 8 + length)


def _some(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:80]) for name in sorted(names)[:8]) or "none"


def _placed(file: OpenFile, name: str, entry: dict[str, Any], data_first_byte: int) -> Layout:
    """Return where a tensor is.  Raises: InvalidCorpus."""
    dtype = STORED[_TYPES[entry["dtype"]]]
    numbers = (entry.get("shape"), entry.get("data_offsets"))
    if not all(isinstance(part, list) and all(type(n) is int for n in part) for part in numbers):
        raise InvalidCorpus(
            file.path, f"tensor {name!r} needs a shape and data_offsets of integers"
        )
    shape, offsets = entry["shape"], entry["data_offsets"]
    if len(shape) not in (1, 2) or len(offsets) != 2:
        raise InvalidCorpus(
            file.path, f"tensor {name!r} has shape {shape}; tokens are 1-D, or 2-D rows"
        )
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    first, end = offsets
    if min(shape) < 0 or not 0 <= first <= end <= file.size_bytes - data_first_byte:
        raise InvalidCorpus(
            file.path,
            f"tensor {name!r} is at {first} to {end}, beyond the file's end; it may be truncated",
        )
    if end - first != count * dtype.itemsize or count == 0:
        raise InvalidCorpus(
            file.path,
            f"tensor {name!r} of shape {shape} and {dtype.name} cannot have {end - first} bytes",
        )
    return Layout(NAME, dtype, data_first_byte + first, count, f"tensor {name!r} of its header")
