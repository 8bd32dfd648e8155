"""Row -> its pieces, and tokens -> the rows that have them, out of the file of an index.

The numbers of the files of tokens lie end to end, 8 bytes each, little-endian. For each file:

    pieces        those of its first row, of its second row ...: token_offset * 2^24 + token_count
    row starts    packed-1 only: rows + 1 numbers, where the pieces of each row begin among those of
                  the file; and their number
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenfeed.sampling.document_rows import DocumentStats, RowPieces, RowsKey
from tokenfeed.sampling.orders import packed_v1

from .numbers import IndexNumbers, Numbers, sums

COUNT_BITS = 24
CONTEXT_LENGTH_END = (1 << COUNT_BITS) - 1
"""T + 1 tokens of a piece have to fit."""
FILE_TOKENS_MAX = 1 << (64 - COUNT_BITS)
_NUMBERS_AT_ONCE = 1 << 17
"""Numbers that a scan reads in one step, a MiB, which bounds its memory."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What an index of rows holds.

    token_counts, piece_counts, row_counts: int64[files].  pieces_hash: 32 bytes; see
    stream/identity.py.
    """

    key: RowsKey
    token_counts: Numbers
    piece_counts: Numbers
    row_counts: Numbers
    pieces_hash: bytes
    stats: DocumentStats

    @property
    def has_row_starts(self) -> bool:
        """Whether rows have several pieces."""
        return self.key.order == packed_v1.NAME

    @property
    def first_numbers(self) -> Numbers:
        """int64[files + 1], where the numbers of each file begin; and their number."""
        counts = self.piece_counts
        if self.has_row_starts:
            counts = counts + self.row_counts + 1
        return sums(counts)


class RowIndex:
    """The rows of a dataset for one order and context length. Safe in any thread.

    stats: what became of its documents.  path: of its file; "" if that has no name.
    """

    def __init__(self, facts: IndexFacts, numbers: IndexNumbers, path: str) -> None:
        """Take numbers, which are closed with this."""
        self.path = path
        self.stats = facts.stats
        self.pieces_hash = facts.pieces_hash
        self._facts = facts
        self._numbers = numbers
        self._row_tokens = facts.key.context_length + 1
        self._first_rows = sums(facts.row_counts)
        self._first_numbers = facts.first_numbers

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return int(self._first_rows[-1])

    @property
    def piece_count(self) -> int:
        """How many pieces all rows have."""
        return self.stats.pieces

    @property
    def row_pieces_max(self) -> int:
        """Greatest number of pieces in a row."""
        return self.stats.row_pieces_max

    def pieces(self, rows: Numbers) -> RowPieces:
        """Return the pieces of rows.  rows: int64[n], each in [0, row_count).

        Raises: CorpusChanged, also if the file is damaged; Unreadable.
        """
        if not rows.size:
            return RowPieces(np.zeros(1, dtype=np.int64), *(rows[:0] for _ in range(3)))
        shard = np.searchsorted(self._first_rows, rows, side="right") - 1
        first, counts = self._places(shard, rows - self._first_rows[shard])
        first_piece = sums(counts)
        total = int(first_piece[-1])
        numbers = self._numbers.ranges(self._first_numbers[shard] + first, counts, total)
        token_offset, token_count = _unpacked(numbers)
        shard_of_piece = np.repeat(shard, counts)
        ends = token_offset + token_count
        self._numbers.require(
            bool(
                token_count.min() >= 2
                and np.add.reduceat(token_count, first_piece[:-1]).max() <= self._row_tokens
                and (ends <= self._facts.token_counts[shard_of_piece]).all()
            )
        )
        return RowPieces(first_piece, shard_of_piece, token_offset, token_count)

    def rows_of(
        self, shard: int, first_tokens: Numbers, end_tokens: Numbers, most: int
    ) -> Numbers | range:
        """Return the rows that have some of these tokens of a file.

        first_tokens, end_tokens: int64[n], ranges that ascend and do not overlap.  most: of their
        pieces; with more, all rows of the file are returned, also those that have none of them.
        Reads the pieces of the file, in bounded parts.
        Returns: int64[n], ascending; or all rows.  Raises: CorpusChanged, Unreadable.
        """
        first_number = int(self._first_numbers[shard])
        pieces, count = [np.empty(0, dtype=np.int64)], 0
        for first, numbers in self._scanned(first_number, int(self._facts.piece_counts[shard])):
            token_offset, token_count = _unpacked(numbers)
            near = np.searchsorted(end_tokens, token_offset, side="right")
            begins = np.append(first_tokens, np.iinfo(np.int64).max)[near]
            pieces.append(np.flatnonzero(begins < token_offset + token_count) + first)
            count += pieces[-1].size
            if count > most:
                return range(*self._first_rows[shard : shard + 2].tolist())
        found = np.concatenate(pieces)
        if self._facts.has_row_starts and found.size:
            found = self._rows_of_pieces(shard, found)
        found += self._first_rows[shard]
        return found

    def close(self) -> None:
        """Release everything. A read in progress fails with CorpusChanged. May be called twice."""
        self._numbers.close()

    def _places(self, shard: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the first piece of each row, and how many it has.

        rows: int64[n], counted within their file.
        """
        if not self._facts.has_row_starts:
            return rows, np.ones_like(rows)
        piece_counts = self._facts.piece_counts[shard]
        first = self._first_numbers[shard] + piece_counts + rows
        found = self._numbers.ranges(first, np.full_like(rows, 2), 2 * rows.size)
        begin, end = found.reshape(-1, 2).T
        counts = end - begin
        self._numbers.require(
            bool(
                counts.min() >= 1
                and counts.max() <= self._row_tokens // 2
                and begin.min() >= 0
                and (end <= piece_counts).all()
            )
        )
        return begin, counts

    def _rows_of_pieces(self, shard: int, pieces: Numbers) -> Numbers:
        """Return the rows of some pieces.  pieces: int64[n], ascending, counted within the file."""
        first_number = int(self._first_numbers[shard] + self._facts.piece_counts[shard])
        # A row begins at or before its pieces: row starts without the first one, which is 0.
        rows = np.zeros_like(pieces)
        row_count = int(self._facts.row_counts[shard])
        for _, starts in self._scanned(first_number + 1, row_count):
            rows += np.searchsorted(starts, pieces, side="right")
        self._numbers.require(int(rows.max()) < row_count)
        return np.unique(rows)

    def _scanned(self, first_number: int, count: int) -> Iterator[tuple[int, Numbers]]:
        """Yield consecutive numbers in parts, and how many are before each part."""
        for first in range(0, count, _NUMBERS_AT_ONCE):
            size = min(_NUMBERS_AT_ONCE, count - first)
            places = np.array([first_number + first]), np.array([size])
            yield first, self._numbers.ranges(*places, size)


def packed_numbers(token_offset: Numbers, token_count: Numbers) -> bytes:
    """Return pieces as they are in the file."""
    offsets = token_offset.astype("<u8") << np.uint64(COUNT_BITS)
    packed: bytes = (offsets | token_count.astype("<u8")).tobytes()
    return packed


def _unpacked(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the first token of each piece in its file, and its tokens."""
    unsigned = numbers.view("<u8")
    offset = (unsigned >> np.uint64(COUNT_BITS)).view(np.int64)
    return offset, (unsigned & np.uint64((1 << COUNT_BITS) - 1)).view(np.int64)
