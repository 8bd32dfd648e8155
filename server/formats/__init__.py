"""What is in a token file: one module per format, each turning size and first bytes into a Layout.

A format is a module with `NAME`, `recognises` and `layout`, and a line in FORMATS.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from . import raw
from .layout import Layout

__all__ = ["FORMATS", "HEAD_BYTES", "Layout", "read_layout"]


class Format(Protocol):
    """What a module of this folder offers."""

    NAME: str

    def recognises(self, head: bytes, /) -> bool:
        """Say whether a file with these first bytes is of this format."""
        ...

    def layout(self, path: str, file_bytes: int, dtype: np.dtype[np.unsignedinteger], /) -> Layout:
        """Return where its tokens lie.  Raises: BadCorpus."""
        ...


HEAD_BYTES = 1024
"""As many of a file's first bytes as any format needs in order to be recognised."""

FORMATS: tuple[Format, ...] = (raw,)
"""In the order in which they are asked; raw, which recognises anything, comes last."""


def read_layout(
    path: str, file_bytes: int, head: bytes, dtype: np.dtype[np.unsignedinteger]
) -> Layout:
    """Return where the tokens of a file lie.

    file_bytes: its size.  head: its first HEAD_BYTES bytes.  dtype: of the tokens, where the
    format does not say.  Raises: BadCorpus, naming the file and what is wrong with it.
    """
    found = next(candidate for candidate in FORMATS if candidate.recognises(head))
    return found.layout(path, file_bytes, dtype)
