"""Raw tokens, as nanoGPT writes them: no header, one token after another, little-endian."""

from __future__ import annotations

from ..files import OpenFile
from .layout import FormatOptions, Layout, all_tokens

NAME = "raw"


def matches(file: OpenFile) -> bool:
    """Return True: a file of tokens alone may begin with anything."""
    return True


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout of a file that is all tokens.  Raises: InvalidCorpus."""
    return all_tokens(NAME, file, options, "no header is known that begins like it")
