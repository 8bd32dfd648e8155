"""The documents of a dataset: where they begin, and the rows that packed-1 and padded-1 fill with
their parts. Both are an index: found beside the tokens and checked, else made in the background.

    document_starts.py    DocumentStarts: the starts of documents, as a plane
    document_search.py    finds them in the indices of the format, or by delimiters
    known_documents.py    documents that the format knows
    delimiters.py         tokens that separate documents

    row_indices.py        RowIndices: those of a dataset, opened or made when they are asked for
    row_index.py          RowIndex: row -> parts of documents, and tokens -> rows
    rows_builder.py       makes the rows of a context length

    index_builder.py      IndexBuilder: finds one of both, or makes it once a machine; its file
    background_build.py   Build: the making in a thread, with progress, failure, stop and close
    index_file.py         the file: where it may be, opened, and written where there is room
    numbers.py            its numbers, read by ranges

A start is the first token of a document that has tokens, counted within its file. Which rows there
are: sampling/document_rows.py.
"""

from __future__ import annotations

from .delimiters import Delimiters
from .document_search import document_starts_of, used_delimiters
from .document_starts import DocumentStarts
from .row_index import RowIndex
from .row_indices import RowIndices
from .rows_builder import what_of

__all__ = [
    "Delimiters",
    "DocumentStarts",
    "RowIndex",
    "RowIndices",
    "document_starts_of",
    "used_delimiters",
    "what_of",
]
