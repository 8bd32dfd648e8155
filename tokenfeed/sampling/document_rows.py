"""Rows of pieces of documents: those of one file, made from where its documents begin.

Pure: docs/protocol.md, Orders, publishes it. A row of `padded-1` is one piece, and rows are
numbered as in the corpus. packing.py places the pieces of `packed-1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .orders import packed_v1
from .packing import histogram, pack, piece_counts, places

Numbers = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 16
"""Rows that are listed in one step, which bounds the memory."""


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
        """Return the hash of the lengths of all pieces, 32 bytes."""

    def pieces(self, rows: Numbers) -> RowPieces:
        """Return the pieces of rows.  rows: int64[n], each in [0, row_count).

        Raises: CorpusChanged, Unreadable.
        """


@dataclass(slots=True)
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

    def add(self, other: DocumentStats) -> None:
        """Add those of another file."""
        row_pieces_max = max(self.row_pieces_max, other.row_pieces_max)
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.row_pieces_max = row_pieces_max


@dataclass(frozen=True, slots=True)
class FilePieces:
    """The pieces of one file in the order of the corpus: `whole` of T + 1 tokens of each document,
    and behind them one of `rest` tokens, unless that is 0.

    lengths, whole, rest: int64[documents]; lengths are those of the documents, in tokens.  stats:
    without rows until all of them were listed.
    """

    key: RowsKey
    lengths: Numbers
    whole: Numbers
    rest: Numbers
    stats: DocumentStats

    @classmethod
    def of(cls, starts: Numbers, token_count: int, key: RowsKey) -> FilePieces:
        """Cut the documents of a file.

        starts: int64[n], where documents begin, strictly ascending; tokens before the first one are
        a document too.  token_count: of the file.
        """
        first_tokens = starts if starts.size and starts[0] == 0 else np.insert(starts, 0, 0)
        if not token_count:
            first_tokens = first_tokens[:0]
        lengths = np.diff(first_tokens, append=token_count)
        whole, rest = piece_counts(lengths, key.context_length)
        stats = DocumentStats(documents=lengths.size, single=int((lengths == 1).sum()))
        if key.long_documents != "cut":
            is_long = lengths > key.context_length + 1
            targets = int(np.maximum(lengths[is_long] - 1, 0).sum())
            kept = 0
            if key.long_documents == "truncate":
                stats.truncated = kept = int(is_long.sum())
            else:
                stats.dropped = int(is_long.sum())
            stats.cropped = targets - kept * key.context_length
            whole = np.where(is_long, int(kept > 0), whole)
            rest = np.where(is_long, 0, rest)
        stats.pieces = int(whole.sum()) + int(np.count_nonzero(rest))
        stats.targets = (
            int(whole.sum()) * key.context_length + int(rest.sum()) - int(np.count_nonzero(rest))
        )
        return cls(key, lengths, whole, rest, stats)

    def in_order(self) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield first tokens and lengths of the pieces, in the order of the corpus."""
        counts = self.whole + (self.rest > 0)
        ends = np.cumsum(counts)
        first_tokens = np.cumsum(self.lengths) - self.lengths
        first = 0
        while first < counts.size:
            done = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, done + _ROWS_AT_ONCE, "right")))
            own = counts[first:end]
            number = np.arange(int(own.sum())) - np.repeat(np.cumsum(own) - own, own)
            context_length = self.key.context_length
            offsets = np.repeat(first_tokens[first:end], own) + number * context_length
            lengths = np.where(
                number < np.repeat(self.whole[first:end], own),
                context_length + 1,
                np.repeat(self.rest[first:end], own),
            )
            yield offsets, lengths
            first = end

    def rows(self) -> Iterator[RowPieces]:
        """Yield the rows of this file in parts, and complete `stats` by them."""
        parts = self._packed() if self.key.order == packed_v1.NAME else self._padded()
        for part in parts:
            counts = np.diff(part.first_piece)
            self.stats.rows += counts.size
            self.stats.row_pieces_max = max(self.stats.row_pieces_max, int(counts.max(initial=0)))
            yield part

    def _padded(self) -> Iterator[RowPieces]:
        for offsets, lengths in self.in_order():
            yield RowPieces(np.arange(offsets.size + 1), np.zeros_like(offsets), offsets, lengths)

    def _packed(self) -> Iterator[RowPieces]:
        packing = pack(histogram(self.lengths, self.key.context_length))
        begins = places(self.lengths, self.key.context_length)
        for first in range(0, packing.row_count, _ROWS_AT_ONCE):
            numbers = np.arange(first, min(first + _ROWS_AT_ONCE, packing.row_count))
            first_piece, ranks, lengths = packing.pieces(numbers)
            yield RowPieces(first_piece, np.zeros_like(ranks), begins[ranks], lengths)
