"""packed-1: which pieces of documents form a row of at most T + 1 tokens. Nothing is cropped.

A document of n tokens is cut into pieces that overlap by one token: piece k has the tokens
[kT, min(kT + T + 1, n)), for each k with kT + 1 < n. So every token of a document but the first is
a target exactly once; a document of one token has no piece.

Pieces are placed longest first, those of one length in the order of the corpus. Each goes into the
row with the least room that holds it; of several such rows, into the one that has had this room for
longest; if there is none, into a new row. This is best-fit decreasing (Johnson 1973), with ties
decided. `pack` places many pieces in one step, on the histogram of lengths: rows with the same
pieces are a range of rows.

Pure: docs/protocol.md publishes it. Knows nothing of torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

_DOCUMENTS_AT_ONCE = 1 << 16
"""Documents that are cut in one step, which bounds the memory."""
_WORD_BITS = 1024
"""Of an integer that marks which rooms some row has; Python's are as long as it takes."""


class _Piece(NamedTuple):
    """Pieces of one length in each row of a range, and what the rows had before.

    length: in tokens.  first_rank: rank of the first piece of row 0, if the range began there: row
    r has the pieces [first_rank + r * per_row, first_rank + (r + 1) * per_row).  before: None if
    the rows were empty.
    """

    length: int
    first_rank: int
    per_row: int
    before: _Piece | None


class _Range(NamedTuple):
    """Consecutive rows that have pieces of the same lengths.  pieces: None if they are empty."""

    first_row: int
    end_row: int
    pieces: _Piece | None


@dataclass(frozen=True, slots=True)
class Packing:
    """Rows in ranges that have pieces of the same lengths.

    row_count: rows of all ranges.  first_rows: int64[ranges + 1], where each range begins; and
    row_count.  first_slots: int64[ranges + 1]; range i has the slots [first_slots[i],
    first_slots[i + 1]).  lengths, first_ranks, counts: int64[slots]; each row r of the range has
    the pieces of ranks [first_ranks + r * counts, first_ranks + (r + 1) * counts), of this length.
    The rank of a piece is its place among all pieces, longest first.
    """

    row_count: int
    first_rows: Numbers
    first_slots: Numbers
    lengths: Numbers
    first_ranks: Numbers
    counts: Numbers

    def pieces(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the pieces of some rows, in the order in which they were placed.

        rows: int64[n], each in [0, row_count).
        Returns: int64[n + 1], where the pieces of each row begin in what follows; and of all these
        pieces int64[m] ranks and int64[m] lengths in tokens.
        """
        at = np.searchsorted(self.first_rows, rows, side="right") - 1
        slots, row_of_slot = ranges(
            self.first_slots[at], self.first_slots[at + 1] - self.first_slots[at]
        )
        counts = self.counts[slots]
        ranks, slot_of_piece = ranges(self.first_ranks[slots] + rows[row_of_slot] * counts, counts)
        first_pieces = np.zeros(rows.size + 1, np.int64)
        per_row = np.bincount(row_of_slot, counts, minlength=rows.size).astype(np.int64)
        np.cumsum(per_row, out=first_pieces[1:])
        return first_pieces, ranks, self.lengths[slots][slot_of_piece]

    def parts(self, pieces_max: int) -> Iterator[Numbers]:
        """Yield all rows in consecutive parts: int64[n], with at most pieces_max pieces together,
        or one row.
        """
        if not self.row_count:
            return
        per_row = np.add.reduceat(self.counts, self.first_slots[:-1])
        ends = np.cumsum(per_row * np.diff(self.first_rows))  # of the pieces of each range
        first = done = 0
        while first < self.row_count:
            wanted = done + pieces_max
            at = min(int(np.searchsorted(ends, wanted)), ends.size - 1)
            left = int(ends[at]) - wanted
            end = int(self.first_rows[at + 1]) - max(0, -(-left // int(per_row[at])))
            end = max(end, first + 1)
            at = int(np.searchsorted(self.first_rows, end)) - 1
            done = int(ends[at] - (self.first_rows[at + 1] - end) * per_row[at])
            yield np.arange(first, end)
            first = end


def piece_counts(lengths: Numbers, context_length: int) -> tuple[Numbers, Numbers]:
    """Return how documents are cut.

    lengths: int64[documents], in tokens, at least 0.  context_length: T.
    Returns: int64[documents] each: pieces of T + 1 tokens; and tokens of the shorter piece behind
    them, in [2, T], or 0 if there is none.
    """
    whole = np.maximum(lengths - 1, 0)
    whole //= context_length
    rest = lengths - whole * context_length
    rest[rest < 2] = 0
    return whole, rest


def histogram(lengths: Numbers, context_length: int) -> Numbers:
    """Return how many pieces documents have of each length: int64[T + 2].

    lengths: int64[documents].  context_length: T.
    """
    found = np.zeros(context_length + 2, dtype=np.int64)
    for first in range(0, lengths.size, _DOCUMENTS_AT_ONCE):
        whole, rest = piece_counts(lengths[first : first + _DOCUMENTS_AT_ONCE], context_length)
        counts = np.bincount(rest)
        found[: counts.size] += counts
        found[0] = 0
        found[context_length + 1] += whole.sum()
    return found


def places(starts: Numbers, lengths: Numbers, context_length: int) -> Numbers:
    """Return where pieces begin, by their rank: int64[pieces], in tokens.

    starts, lengths: int64[documents].  context_length: T.
    """
    wholes, rests = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # 16-bit keys are sorted by their digits, in one pass each.
    dtype = np.dtype("u2" if context_length < 1 << 16 else "i8")
    keys = [np.empty(0, dtype)]
    for first in range(0, lengths.size, _DOCUMENTS_AT_ONCE):
        own = slice(first, first + _DOCUMENTS_AT_ONCE)
        whole, rest = piece_counts(lengths[own], context_length)
        numbers, documents = ranges(np.zeros_like(whole), whole)
        wholes.append(starts[own][documents] + numbers * context_length)
        with_rest = np.flatnonzero(rest)
        rests.append(starts[own][with_rest] + whole[with_rest] * context_length)
        keys.append((context_length - rest[with_rest]).astype(dtype))
    joined, sizes = _joined(keys), _joined(rests)
    by_length = np.argsort(joined, kind="stable")
    del joined
    for first in range(0, by_length.size, _DOCUMENTS_AT_ONCE):
        own = slice(first, first + _DOCUMENTS_AT_ONCE)
        by_length[own] = sizes[by_length[own]]
    del sizes
    wholes.append(by_length)
    return _joined(wholes)


def pack(piece_histogram: Numbers) -> Packing:
    """Place all pieces into rows.

    piece_histogram: int64[T + 2], how many pieces there are of each length; none of 0 or 1.
    """
    rows = _OpenRows(piece_histogram.size - 1)
    first_rank = 0
    for length in np.flatnonzero(piece_histogram)[::-1].tolist():
        count = int(piece_histogram[length])
        rows.place(length, first_rank, count)
        first_rank += count
    return rows.packing()


class _OpenRows:
    """Ranges of rows by their room, and of those with the same room in the order in which they got
    it.
    """

    def __init__(self, row_tokens: int) -> None:
        """Begin without a row.  row_tokens: T + 1."""
        self._row_tokens = row_tokens
        self._row_count = 0
        self._by_room: dict[int, deque[_Range]] = {}
        # Bit r: a row has this room. In words, and a word of words: one long integer would be
        # copied at each change.
        self._words = [0] * (row_tokens // _WORD_BITS + 1)
        self._filled_words = 0
        self._full: list[_Range] = []

    def place(self, length: int, first_rank: int, count: int) -> None:
        """Place pieces of one length.  first_rank: of the first one."""
        end_rank = first_rank + count
        while first_rank < end_rank:
            left = end_rank - first_rank
            room = self._least_room(length)
            rows = self._take(room) if room else self._new_rows(length, left)
            room = room or self._row_tokens
            # The first row of the range is filled before the second one is begun: after a piece, it
            # has less room than the others, and is the first choice until it has no room for more.
            per_row = room // length
            full = min(left // per_row, rows.end_row - rows.first_row)
            rows = self._extended(rows, full, length, per_row, first_rank, room)
            first_rank += full * per_row
            rest = end_rank - first_rank if rows.first_row < rows.end_row else 0
            if 0 < rest < per_row:
                rows = self._extended(rows, 1, length, rest, first_rank, room)
                first_rank += rest
            if rows.first_row < rows.end_row:
                self._put_back(rows, room)

    def packing(self) -> Packing:
        """Return all rows."""
        ranges = [*self._full, *(rows for queue in self._by_room.values() for rows in queue)]
        ranges.sort()
        first_slots = [0]
        slots: list[tuple[int, int, int]] = []
        for rows in ranges:
            own = []
            piece = rows.pieces
            while piece is not None:
                own.append((piece.length, piece.first_rank, piece.per_row))
                piece = piece.before
            slots += reversed(own)
            first_slots.append(len(slots))
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        first_rows = np.array([*(rows.first_row for rows in ranges), self._row_count], np.int64)
        return Packing(self._row_count, first_rows, np.array(first_slots, np.int64), *columns)

    def _new_rows(self, length: int, count: int) -> _Range:
        """Open as many rows as pieces of one length need."""
        first_row = self._row_count
        self._row_count += -(-count // (self._row_tokens // length))
        return _Range(first_row, self._row_count, None)

    def _extended(
        self, rows: _Range, row_count: int, length: int, per_row: int, first_rank: int, room: int
    ) -> _Range:
        """Place per_row pieces into each of the first rows of a range.  Returns: its other rows."""
        first_row, end_row, before = rows
        middle = first_row + row_count
        if row_count:
            pieces = _Piece(length, first_rank - first_row * per_row, per_row, before)
            self._put(_Range(first_row, middle, pieces), room - per_row * length)
        return _Range(middle, end_row, before)

    def _least_room(self, length: int) -> int:
        """Return the least room of a row that is at least length; 0 if there is none."""
        word, bit = divmod(length, _WORD_BITS)
        found = self._words[word] >> bit << bit
        if not found:
            others = self._filled_words >> (word + 1) << (word + 1)
            if not others:
                return 0
            word = _lowest_bit(others)
            found = self._words[word]
        return word * _WORD_BITS + _lowest_bit(found)

    def _take(self, room: int) -> _Range:
        """Take out the range that has had this room for longest."""
        queue = self._by_room[room]
        rows = queue.popleft()
        if not queue:
            del self._by_room[room]
            word, bit = divmod(room, _WORD_BITS)
            self._words[word] &= ~(1 << bit)
            if not self._words[word]:
                self._filled_words &= ~(1 << word)
        return rows

    def _put_back(self, rows: _Range, room: int) -> None:
        """Put rows of a range that was taken out where they were: before all others."""
        self._mark(room).appendleft(rows)

    def _put(self, rows: _Range, room: int) -> None:
        """Keep a range whose rows have this room now; a piece has at least 2 tokens."""
        if room < 2:
            self._full.append(rows)
        else:
            self._mark(room).append(rows)

    def _mark(self, room: int) -> deque[_Range]:
        word, bit = divmod(room, _WORD_BITS)
        self._words[word] |= 1 << bit
        self._filled_words |= 1 << word
        return self._by_room.setdefault(room, deque())


def _lowest_bit(number: int) -> int:
    return (number & -number).bit_length() - 1


def _joined(parts: list[npt.NDArray[Scalar]]) -> npt.NDArray[Scalar]:
    """Return arrays end to end, and release each of them as soon as it is copied."""
    joined = np.empty(sum(part.size for part in parts), parts[0].dtype)
    end = joined.size
    while parts:
        part = parts.pop()
        joined[end - part.size : end] = part
        end -= part.size
    return joined


def ranges(firsts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the numbers [first, first + count) of each range, end to end; and of which range each
    is: int64[sum of counts] both.
    """
    owners = np.repeat(np.arange(firsts.size), counts)
    shifts = firsts - (np.cumsum(counts) - counts)
    return np.arange(owners.size) + shifts[owners], owners
