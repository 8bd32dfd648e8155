"""A checkpoint of safetensors: only its header is read, in which texts have a place.

https://huggingface.co/docs/safetensors: 8 bytes, little-endian, are the length of the header, which
is JSON. A state is JSON in one of the texts of its `__metadata__`.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from .checkpoint_file import Entry, opened, problem_of

_HEADER_BYTES_MAX = 100_000_000
"""That of the format itself."""
_LENGTH = struct.Struct("<Q")
PREFIX_BYTES = _LENGTH.size + 1


def is_safetensors(prefix: bytes) -> bool:
    """Return whether a file is one of safetensors, or the beginning of one.

    prefix: its first PREFIX_BYTES bytes.
    """
    if len(prefix) < PREFIX_BYTES or prefix[-1:] != b"{":
        return False
    return bool(_LENGTH.unpack_from(prefix)[0] <= _HEADER_BYTES_MAX)


def read_safetensors(path: Path) -> list[Entry]:
    """Return the texts in the header of a file that are JSON.  Raises: InvalidRequest."""
    with opened(path) as (file, size_bytes):
        (header_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if header_bytes > size_bytes - _LENGTH.size:
            problem = f"is truncated: its header has {header_bytes} bytes, but the file"
            raise problem_of(path, f"{problem} {size_bytes}")
        content = file.read(header_bytes)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError):
        raise problem_of(path, "has a damaged header of safetensors") from None
    texts = header.get("__metadata__", {})
    if not isinstance(texts, dict):
        raise problem_of(path, "has a damaged __metadata__ in its header of safetensors")
    found = []
    for name, text in texts.items():
        if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
            try:
                found.append(Entry((name,), json.loads(text)))
            except (ValueError, RecursionError):
                continue  # a text that is no JSON has no state
    return found
