"""Raw tokens, as nanoGPT writes them: no header, one token after another, little-endian."""

from __future__ import annotations

from tokenfeed.errors import BadCorpus

from ..files import OpenFile
from .layout import STORED, Asked, Layout

NAME = "raw"


def recognises(file: OpenFile) -> bool:
    """Return True: a file of tokens alone may begin with anything."""
    return True


def layout(file: OpenFile, asked: Asked) -> Layout:
    """Return the layout of a file that is all tokens.  Raises: BadCorpus."""
    return all_tokens(NAME, file, asked, "no header is known that begins like it")


def all_tokens(name: str, file: OpenFile, asked: Asked, why: str) -> Layout:
    """Return the layout of a file without header.

    name: of the format.  why: it is taken for one.
    Raises: BadCorpus if it is empty or ends within a token.
    """
    dtype = asked.dtype or STORED["uint16"]
    if file.size_bytes == 0:
        raise BadCorpus(file.path, "is empty")
    if file.size_bytes % dtype.itemsize:
        raise BadCorpus(
            file.path,
            f"{file.size_bytes} bytes are no whole number of {dtype.name} tokens; "
            "is it of another --dtype, or cut short?",
        )
    count = file.size_bytes // dtype.itemsize
    return Layout(name, dtype, 0, count, why, dtype_assumed=asked.dtype is None)
