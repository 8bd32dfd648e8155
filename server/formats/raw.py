"""Raw tokens, as nanoGPT writes them: no header, one token after another, little-endian."""

from __future__ import annotations

import numpy as np

from tokenfeed.errors import BadCorpus

from .layout import Layout

NAME = "raw"


def recognises(head: bytes) -> bool:
    """Return True: a file of tokens alone may begin with anything."""
    return True


def layout(path: str, file_bytes: int, dtype: np.dtype[np.unsignedinteger]) -> Layout:
    """Return the layout of a file that is all tokens.

    file_bytes: size of the file.  dtype: of its tokens.
    Raises: BadCorpus if it is empty or ends within a token.
    """
    if file_bytes == 0:
        raise BadCorpus(path, "is empty")
    if file_bytes % dtype.itemsize:
        raise BadCorpus(
            path,
            f"{file_bytes} bytes are no whole number of {dtype.name} tokens; "
            "is it of another --dtype, or cut short?",
        )
    return Layout(dtype, 0, file_bytes // dtype.itemsize)
