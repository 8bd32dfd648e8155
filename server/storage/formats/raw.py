"""Raw tokens, as nanoGPT writes them: no header, one token after another, little-endian."""

from __future__ import annotations

from ..files import OpenFile
from .layout import Asked, Layout, all_tokens

NAME = "raw"


def recognises(file: OpenFile) -> bool:
    """Return True: a file of tokens alone may begin with anything."""
    return True


def layout(file: OpenFile, asked: Asked) -> Layout:
    """Return the layout of a file that is all tokens.  Raises: BadCorpus."""
    return all_tokens(NAME, file, asked, "no header is known that begins like it")
