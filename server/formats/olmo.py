"""OLMo-core's token files: raw tokens without a header in a file named *.npy, and, beside it, a
*.csv.gz with a line for each document: START,END[,...] in tokens.

Layout: src/olmo_core/data of github.com/allenai/OLMo-core. Nothing in the file says its type.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from tokenfeed.errors import BadCorpus

from ..files import OpenFile
from .documents import Documents, Ends, require_ascending
from .layout import Asked, Layout
from .raw import all_tokens

NAME = "olmo"
SUFFIX = ".npy"

_LINES_AT_ONCE = 1 << 14
_LINE_BYTES_MAX = 1 << 12


def recognises(file: OpenFile) -> bool:
    """Say whether it is named like an array and was asked after npy, which knows a real one."""
    return file.path.endswith(SUFFIX)


def layout(file: OpenFile, asked: Asked) -> Layout:
    """Return the layout of a file that is all tokens.  Raises: BadCorpus."""
    why = f"named *{SUFFIX}, without NumPy's header"
    path = file.path.removesuffix(SUFFIX) + ".csv.gz"
    found = all_tokens(NAME, file, asked, why)
    if not os.path.exists(path):
        return found
    count = require_ascending(path, _ends(path), found.token_count, all_of_it=False)
    return replace(found, documents=Documents(count, path, partial(_ends, path)))


def _ends(path: str) -> Iterator[Ends]:
    """Yield where documents end.  Raises: BadCorpus."""
    try:
        with gzip.open(path, "rb") as file:
            lines = iter(partial(file.readline, _LINE_BYTES_MAX), b"")
            while some := list(islice(lines, _LINES_AT_ONCE)):
                yield np.array([int(line.split(b",", 2)[1]) for line in some], dtype=np.int64)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, OverflowError) as error:
        raise BadCorpus(path, "cannot be read as lines of START,END") from error
