"""Where documents begin: found, kept in a file, and read for rows.

    opening.py      borders_of: from indices, a kept file, or a search
    known.py        borders that the format knows, from the index beside each file
    delimiters.py   borders at tokens that separate documents
    search.py       a search for them in the background
    writing.py      entries in memory; more in a file, in the first folder that takes it
    kept.py         the file beside the tokens, checked when it is found again
    reading.py      the plane of rows

An entry is the first token of a document that has tokens, counted within its file.
"""

from __future__ import annotations

from .delimiters import END_OPTION, START_OPTION, Delimiters
from .opening import borders_of, used_delimiters
from .reading import Borders
from .search import BorderSearch

__all__ = [
    "END_OPTION",
    "START_OPTION",
    "BorderSearch",
    "Borders",
    "Delimiters",
    "borders_of",
    "used_delimiters",
]
