"""What is in a token file: one module per format, each turning a file's size and first bytes into a
Layout.

A format is a module with `NAME` and `layout(path, file_bytes, dtype)`, and a line in FORMATS.
"""

from __future__ import annotations

import numpy as np

from . import raw
from .layout import Layout

__all__ = ["FORMATS", "Layout", "read_layout"]

FORMATS = {raw.NAME: raw}


def read_layout(path: str, file_bytes: int, dtype: np.dtype[np.unsignedinteger]) -> Layout:
    """Return where the tokens of a file lie.  Raises: BadCorpus, naming the file and what is wrong
    with it.
    """
    return raw.layout(path, file_bytes, dtype)
