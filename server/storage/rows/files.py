"""The rows of one file of tokens: arrays -> bytes, in any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tokenfeed.sampling.document_rows import DocumentStats, FilePieces, RowsKey
from tokenfeed.sampling.orders import packed_v1

from ..kept.mapped import NUMBER, Numbers
from .reading import packed_numbers

Append = Callable[[bytes], None]
"""Takes the next bytes of an index."""


def write_rows(
    pieces: FilePieces, append: Append, on_share: Callable[[float], None] = lambda share: None
) -> DocumentStats:
    """Write the rows of a file, in parts; the numbers are those of reading.py.

    on_share: is given the share of the pieces that is done, now and then; it may raise.
    Returns: what became of its documents.
    """
    on_share(0.0)
    stats = pieces.stats()
    done = row_pieces_max = 0
    row_starts = [np.zeros(1, dtype=NUMBER)]
    row_count = 0
    for part in pieces.rows():
        append(packed_numbers(part.token_offset, part.token_count))
        if pieces.key.order == packed_v1.NAME:
            row_starts.append(part.first_piece[1:].astype(NUMBER) + done)
        done += part.token_count.size
        row_count += part.first_piece.size - 1
        row_pieces_max = max(row_pieces_max, int(np.diff(part.first_piece).max(initial=0)))
        on_share(done / max(1, stats.pieces))
    if pieces.key.order == packed_v1.NAME:
        for starts in row_starts:
            append(starts.tobytes())
    return replace(stats, rows=row_count, row_pieces_max=row_pieces_max)


class FileRows(NamedTuple):
    """The rows of a file, from another process.  numbers: as in the index."""

    numbers: bytes
    stats: DocumentStats

    def write(self, append: Append) -> DocumentStats:
        """Like `write_rows`."""
        append(self.numbers)
        return self.stats


@dataclass(frozen=True, slots=True)
class FileDocuments:
    """Where the documents of a file begin, for the process that makes its rows; the fields are the
    arguments of FilePieces.of.
    """

    starts: Numbers
    token_count: int

    @property
    def size_bytes(self) -> int:
        """How much memory they take."""
        return self.starts.nbytes


def rows_of_documents(documents: FileDocuments, key: RowsKey) -> FileRows:
    """Return the rows of a file that was sent to this process."""
    numbers: list[bytes] = []
    pieces = FilePieces.of(documents.starts, documents.token_count, key)
    stats = write_rows(pieces, numbers.append)
    return FileRows(b"".join(numbers), stats)
