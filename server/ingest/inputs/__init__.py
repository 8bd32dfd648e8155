"""Files of text -> units to encode.

discovery.py   finds the files that a command line names
hashes.py      the SHA-256 of every source
jsonl.py, parquet.py, text.py    the readers, one for each kind of file

A reader is a module with `KIND` and `units`, and a line in READERS. Its units depend only on the
content of the file, so a resumed run gets the same units. Input that cannot be read is a unit with
a problem.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from tokenfeed.errors import InvalidSource

from ...datasets.sources.paths import PACKINGS
from ...storage.formats.unsupported import LFS
from ..tokenize.recipe import Recipe
from ..units import OnSourceHash, TextSource, Unit
from . import jsonl, parquet, text

Units = Callable[[TextSource, int, int, Recipe, OnSourceHash], Iterator[Unit]]
"""A source, its number, where to begin (0, or the end of a unit), and what is read of each document
-> its units. A reader that computes the SHA-256 of a source anyway tells it."""
READERS: dict[str, Units] = {module.KIND: module.units for module in (parquet, jsonl, text)}


def kind_of(path: str, head: bytes) -> str:
    """Return the kind of a file: by its first bytes, or by its name if they do not tell.

    Raises: InvalidSource.
    """
    name = path.lower()
    if head.startswith(LFS):
        raise InvalidSource(path, "is a pointer of Git LFS; fetch the file itself: git lfs pull")
    if head.startswith(b"PAR1") or name.endswith(".parquet"):
        return parquet.KIND
    packed = jsonl.codec_of(head) is not None or name.endswith(PACKINGS)
    if packed and os.path.splitext(name)[0].endswith(".txt"):
        raise InvalidSource(path, "is compressed text, which is one document; unpack it first")
    if packed or name.endswith((".jsonl", ".ndjson", ".json")):
        return jsonl.KIND
    if re.match(rb'\s*\{\s*"', head) and not name.endswith(".txt"):
        return jsonl.KIND
    if b"\0" in head or (head.startswith(b"%PDF-") and not name.endswith(".txt")):
        raise InvalidSource(path, "is not text: it has bytes that no text has, or is a PDF")
    return text.KIND
