"""OLMo-core's token files: raw tokens without a header in a file named *.npy, and a *.csv.gz beside
it with one line for each document: START,END[,...] in tokens.

Layout: src/olmo_core/data of github.com/allenai/OLMo-core. The token type is recorded nowhere.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..door import exists, open_file
from ..layout import Documents, Ends, Layout
from ..open_file import OpenFile
from ..option_names import FORMAT
from . import npy
from .format_options import FormatOptions, all_tokens, require_ascending

NAME = "olmo"
SUFFIX = ".npy"

_LINES_AT_ONCE = 1 << 14
_LINE_BYTES_MAX = 1 << 12


def matches(file: OpenFile) -> bool:
    """Return whether it is named *.npy; npy, which detects real arrays, is tried before."""
    return file.path.endswith(SUFFIX)


def layout(file: OpenFile, options: FormatOptions) -> Layout:
    """Return the layout: the whole file is tokens.  Raises: InvalidCorpus."""
    if npy.matches(file):
        option = FORMAT.to(npy.NAME)
        problem = f"has NumPy's header, so it is not OLMo's; pass {option}"
        raise InvalidCorpus(file.path, problem, option)
    why = f"named *{SUFFIX}, without NumPy's header"
    path = file.path.removesuffix(SUFFIX) + ".csv.gz"
    found = all_tokens(NAME, file, options, why)
    if not exists(path):
        return found
    count = require_ascending(path, _ends(path), found.token_count, all_of_it=False)
    documents = Documents(count, path, partial(_ends, path), partial(_pairs, path))
    return replace(found, documents=documents)


def _ends(path: str) -> Iterator[Ends]:
    """Yield where documents end.  Raises: InvalidCorpus."""
    for pairs in _pairs(path):
        yield pairs[1::2]


def _pairs(path: str) -> Iterator[Ends]:
    """Yield START and END of each document.  Raises: InvalidCorpus."""
    try:
        with open_file(path) as packed, gzip.GzipFile(fileobj=packed.stream()) as file:
            lines = iter(partial(file.readline, _LINE_BYTES_MAX), b"")
            while block := list(islice(lines, _LINES_AT_ONCE)):
                if max(map(len, block)) == _LINE_BYTES_MAX:
                    raise ValueError("line too long")
                words = [line.split(b",", 2) for line in block]
                numbers = [int(number) for line in words for number in (line[0], line[1])]
                yield np.array(numbers, dtype=np.int64)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, OverflowError) as error:
        raise InvalidCorpus(path, "cannot be read as lines of START,END") from error
