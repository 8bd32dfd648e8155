"""Raw tokens, as nanoGPT writes them: little-endian, without a header."""

from __future__ import annotations

from ..layout import Layout
from ..open_file import OpenFile
from .format_options import FormatOptions, all_tokens

NAME = "raw"


def matches(file: OpenFile) -> bool:
    """Return True: a file without a header may begin with anything."""
    return True


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout: the whole file is tokens.  Raises: InvalidCorpus."""
    return all_tokens(NAME, file, options, "no known header")
