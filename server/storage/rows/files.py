"""The rows of one file of tokens: arrays -> bytes, in any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenfeed.sampling.document_rows import DocumentStats, FilePieces, RowsKey
from tokenfeed.sampling.orders import packed_v1

from ..kept.mapped import NUMBER, Numbers
from .reading import packed_numbers


class FileRows(NamedTuple):
    """The rows of one file of tokens.

    numbers: as in the index (reading.py).  lengths: tokens of each piece, 4 bytes each,
    little-endian, in the order of the corpus.  stats: what became of its documents.
    """

    numbers: bytes
    lengths: bytes
    stats: DocumentStats


def rows_of_file(
    starts: Numbers,
    token_count: int,
    key: RowsKey,
    on_share: Callable[[float], None] = lambda share: None,
) -> FileRows:
    """Return the rows of a file; needs no file, and runs in any process.

    starts, token_count: as for FilePieces.of.  on_share: is given the share of the pieces that is
    done, now and then; it may raise.
    """
    pieces = FilePieces.of(starts, token_count, key)
    lengths = [found.astype("<u4").tobytes() for _, found in pieces.in_order()]
    numbers, row_starts = [], [np.zeros(1, dtype=NUMBER)]
    done = 0
    on_share(0.0)
    for part in pieces.rows():
        numbers.append(packed_numbers(part.token_offset, part.token_count))
        if key.order == packed_v1.NAME:
            row_starts.append(part.first_piece[1:].astype(NUMBER) + done)
        done += part.token_count.size
        on_share(done / max(1, pieces.stats.pieces))
    if key.order == packed_v1.NAME:
        numbers.extend(part.tobytes() for part in row_starts)
    return FileRows(b"".join(numbers), b"".join(lengths), pieces.stats)


@dataclass(frozen=True, slots=True)
class Starts:
    """Where the documents of a file begin: int64[documents]."""

    starts: Numbers

    @property
    def size_bytes(self) -> int:
        """How much memory they take."""
        return self.starts.nbytes


@dataclass(frozen=True, slots=True)
class FileUnit:
    """A file of tokens, for the process that makes its rows.  content: None once it was sent."""

    token_count: int
    content: Starts | None


def rows_of_unit(unit: FileUnit, key: RowsKey) -> FileRows:
    """Return the rows of a file that was sent to this process."""
    assert unit.content is not None
    return rows_of_file(unit.content.starts, unit.token_count, key)
