"""Rows of pieces of documents, for packed-1 and padded-1: made once for a context length, kept in a
file, and read for a plan.

    indices.py    RowIndices: those of a dataset, opened, or made in the background
    making.py     the rows of all files, found or made, into one file
    files.py      documents of a file of tokens -> its rows
    kept.py       the file beside the tokens, checked when it is found again
    reading.py    RowIndex: row -> pieces, and tokens -> rows

Which rows there are: sampling/document_rows.py.
"""

from __future__ import annotations

from .files import FileDocuments, FileRows, rows_of_documents
from .indices import RowIndices
from .kept import what_of
from .making import RowsJob
from .reading import RowIndex

__all__ = [
    "FileDocuments",
    "FileRows",
    "RowIndex",
    "RowIndices",
    "RowsJob",
    "rows_of_documents",
    "what_of",
]
