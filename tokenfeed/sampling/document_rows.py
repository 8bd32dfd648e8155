"""Rows of pieces of documents: those of one file, made from where its documents begin.

Pure: docs/protocol.md, Orders, publishes it. A row of `padded-1` is one piece, and rows are
numbered as in the corpus. packing.py places the pieces of `packed-1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .orders import packed_v1
from .packing import histogram, pack, piece_counts, places

Numbers = npt.NDArray[np.int64]

_PIECES_AT_ONCE = 1 << 16
"""Pieces, or documents, that are listed in one step, which bounds the memory."""


class RowsKey(NamedTuple):
    """What rows are made by, besides the documents.

    order: one over documents.  context_length: T.  long_documents: one of the order's.
    """

    order: str
    context_length: int
    long_documents: str


class RowPieces(NamedTuple):
    """The pieces of rows.

    first_piece: int64[rows + 1]; row r has the pieces [first_piece[r], first_piece[r + 1]).
    shard, token_offset, token_count: int64[pieces], file of each piece, its first token there, and
    its tokens.
    """

    first_piece: Numbers
    shard: Numbers
    token_offset: Numbers
    token_count: Numbers


class DocumentRows(Protocol):
    """The rows of a corpus, by their number. Safe in any thread."""

    @property
    def row_count(self) -> int:
        """Return how many rows there are."""

    @property
    def piece_count(self) -> int:
        """Return how many pieces all rows have."""

    @property
    def pieces_hash(self) -> bytes:
        """Return the hash of how documents are cut into pieces, 32 bytes."""

    def pieces(self, rows: Numbers) -> RowPieces:
        """Return the pieces of rows.  rows: int64[n], each in [0, row_count).

        Raises: CorpusChanged, Unreadable.
        """


@dataclass(frozen=True, slots=True)
class DocumentStats:
    """What became of documents.

    documents: those that have tokens.  pieces, rows.  targets: tokens that are a target once an
    epoch.  single: documents of one token, which have no target.  dropped, truncated: documents
    longer than a row.  cropped: tokens that are no targets because of that.  row_pieces_max:
    greatest number of pieces in a row.
    """

    documents: int = 0
    pieces: int = 0
    rows: int = 0
    targets: int = 0
    single: int = 0
    dropped: int = 0
    truncated: int = 0
    cropped: int = 0
    row_pieces_max: int = 0

    def __add__(self, other: DocumentStats) -> DocumentStats:
        """Return those of both."""
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)
        }
        sums["row_pieces_max"] = max(self.row_pieces_max, other.row_pieces_max)
        return DocumentStats(**sums)


def document_lengths(starts: Numbers, token_count: int) -> Numbers:
    """Return the lengths of the documents of a file: int64[documents].

    starts: int64[documents], where they begin, strictly ascending from 0 on.  token_count: of the
    file.
    """
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = token_count - starts[-1:]
    return lengths


@dataclass(frozen=True, slots=True)
class FilePieces:
    """The pieces of one file.

    starts, lengths: int64[documents], where its documents begin, and how long they are.
    """

    key: RowsKey
    starts: Numbers
    lengths: Numbers

    @classmethod
    def of(cls, starts: Numbers, token_count: int, key: RowsKey) -> FilePieces:
        """Take the documents of a file; the arguments are as for `document_lengths`."""
        return cls(key, starts, document_lengths(starts, token_count))

    def stats(self) -> DocumentStats:
        """Return what becomes of the documents, without rows."""
        found = DocumentStats()
        for first in range(0, self.lengths.size, _PIECES_AT_ONCE):
            found += self._stats_of(self.lengths[first : first + _PIECES_AT_ONCE])
        return found

    def rows(self) -> Iterator[RowPieces]:
        """Yield the rows of this file in parts."""
        return self._packed() if self.key.order == packed_v1.NAME else self._padded()

    def _stats_of(self, lengths: Numbers) -> DocumentStats:
        whole, rest = self._cut(lengths)
        pieces = int(whole.sum()) + int(np.count_nonzero(rest))
        # All but the first token of a piece.
        targets = int(whole.sum()) * (self.key.context_length + 1) + int(rest.sum()) - pieces
        long_count = 0
        if self.key.long_documents != "cut":
            long_count = int(np.count_nonzero(lengths > self.key.context_length + 1))
        truncates = self.key.long_documents == "truncate"
        return DocumentStats(
            documents=lengths.size,
            pieces=pieces,
            targets=targets,
            single=int(np.count_nonzero(lengths == 1)),
            dropped=0 if truncates else long_count,
            truncated=long_count if truncates else 0,
            cropped=int(np.maximum(lengths - 1, 0).sum()) - targets,
        )

    def _cut(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return how many pieces of T + 1 tokens documents have, and the tokens of one behind them,
        or 0 if there is none.
        """
        whole, rest = piece_counts(lengths, self.key.context_length)
        if self.key.long_documents != "cut":
            is_long = lengths > self.key.context_length + 1
            whole[is_long] = int(self.key.long_documents == "truncate")
            rest[is_long] = 0
        return whole, rest

    def _padded(self) -> Iterator[RowPieces]:
        first = 0
        while first < self.lengths.size:
            # A document of many pieces is listed alone.
            lengths = self.lengths[first : first + _PIECES_AT_ONCE]
            whole, rest = self._cut(lengths)
            counts = whole + (rest > 0)
            ends = np.cumsum(counts)
            size = max(1, int(np.searchsorted(ends, _PIECES_AT_ONCE, "right")))
            own = counts[:size]
            number = np.arange(int(ends[size - 1])) - np.repeat(ends[:size] - own, own)
            context_length = self.key.context_length
            starts = self.starts[first : first + size]
            offsets = np.repeat(starts, own) + number * context_length
            is_whole = number < np.repeat(whole[:size], own)
            sizes = np.where(is_whole, context_length + 1, np.repeat(rest[:size], own))
            yield RowPieces(np.arange(offsets.size + 1), np.zeros_like(offsets), offsets, sizes)
            first += size

    def _packed(self) -> Iterator[RowPieces]:
        packing = pack(histogram(self.lengths, self.key.context_length))
        begins = places(self.starts, self.lengths, self.key.context_length)
        for numbers in packing.parts(_PIECES_AT_ONCE):
            first_piece, ranks, lengths = packing.pieces(numbers)
            yield RowPieces(first_piece, np.zeros_like(ranks), begins[ranks], lengths)
