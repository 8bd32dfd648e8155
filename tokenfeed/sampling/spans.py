"""The source of the tokens of rows: the output of a plan, and the input of a store.

Pure arrays. A row of plain windows is one span. A row of an order over documents is several
consecutive spans, followed by padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Pieces(NamedTuple):
    """How spans form rows that are not plain windows.

    first_span: int64[rows + 1]; row r has the spans [first_span[r], first_span[r + 1]).
    token_count: int64[spans], how many tokens each has, at least 1.
    """

    first_span: Numbers
    token_count: Numbers


class Part(NamedTuple):
    """Where a slice is.  spans: those that it is a slice of.  first_row: of the slice in them."""

    spans: Spans
    first_row: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Runs of consecutive tokens, in the order of the rows that they form.

    row_tokens: tokens of a row, T + 1; if its spans have fewer, the end of the row is padding.
    source, shard: int64[spans], index of the source in the stream, and of the file in it.
    token_offset: int64[spans], first token in that file.
    pieces: None if each row is a window: one span of row_tokens tokens.
    part: None if these are no slice of others.
    """

    row_tokens: int
    source: Numbers
    shard: Numbers
    token_offset: Numbers
    pieces: Pieces | None = None
    part: Part | None = None

    @classmethod
    def of_windows(
        cls, row_tokens: int, shard: Numbers, token_offset: Numbers, source: int = 0
    ) -> Spans:
        """Return one span of row_tokens tokens for each row.  shard, token_offset: int64[rows]."""
        return cls(row_tokens, np.full(shard.size, source), shard, token_offset)

    @property
    def are_windows(self) -> bool:
        """Whether each row is one span of row_tokens tokens."""
        return self.pieces is None

    @property
    def first_span(self) -> Numbers:
        """int64[rows + 1], as in Pieces."""
        return np.arange(self.shard.size + 1) if self.pieces is None else self.pieces.first_span

    @property
    def row_source(self) -> Numbers:
        """int64[rows], the source of each row: that of its first span."""
        return self.source if self.pieces is None else self.source[self.pieces.first_span[:-1]]

    @property
    def token_count(self) -> Numbers:
        """int64[spans], as in Pieces."""
        if self.pieces is None:
            return np.full(self.shard.size, self.row_tokens)
        return self.pieces.token_count

    @property
    def row_of_span(self) -> Numbers:
        """int64[spans], the row of each span."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_span))

    @property
    def places_in_row(self) -> Numbers:
        """int64[spans], where each span begins within its row."""
        rows = self.first_span
        firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.token_count)])
        places: Numbers = firsts[:-1] - np.repeat(firsts[rows[:-1]], np.diff(rows))
        return places

    @property
    def size_tokens(self) -> int:
        """Tokens of all spans together, without padding."""
        if self.pieces is None:
            return self.shard.size * self.row_tokens
        return int(self.pieces.token_count.sum())

    def as_windows(self) -> Spans:
        """Return rows that are all windows, as such, where rows of pieces were among them."""
        return replace(self, pieces=None, part=None)

    @property
    def whole(self) -> Part:
        """The planned rows that these rows are a slice of, or these rows themselves. Work that
        takes as long for a few rows as for thousands is done once, for all planned rows.
        """
        return self.part or Part(self, 0)

    @property
    def padding(self) -> Numbers:
        """int64[rows], tokens of padding at the end of each row."""
        if self.pieces is None:
            return np.zeros(len(self), dtype=np.int64)
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.pieces.token_count)])
        return self.row_tokens - np.diff(ends[self.pieces.first_span])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shard.size if self.pieces is None else self.pieces.first_span.size - 1

    def __getitem__(self, rows: slice) -> Spans:
        """Return the spans of consecutive rows, without a copy."""
        first, end, _ = rows.indices(len(self))
        end = max(first, end)
        if end - first == len(self):
            return self
        whole, first_row = self.whole
        part = Part(whole, first_row + first)
        pieces = self.pieces
        if pieces is not None:
            first_span = pieces.first_span[first : end + 1]
            first, end = int(first_span[0]), int(first_span[-1])
            pieces = Pieces(first_span - first, pieces.token_count[first:end])
        return Spans(
            self.row_tokens,
            self.source[first:end],
            self.shard[first:end],
            self.token_offset[first:end],
            pieces,
            part,
        )

    def select(self, rows: Numbers) -> Spans:
        """Return the spans of some rows.  rows: int64[n], their indices, in any order."""
        if self.pieces is None:
            spans, pieces = rows, None
        else:
            counts = np.diff(self.pieces.first_span)[rows]
            first_span = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
            shift = self.pieces.first_span[rows] - first_span[:-1]
            spans = np.arange(first_span[-1]) + np.repeat(shift, counts)
            pieces = Pieces(first_span, self.pieces.token_count[spans])
        return Spans(
            self.row_tokens,
            self.source[spans],
            self.shard[spans],
            self.token_offset[spans],
            pieces,
        )

    def lay_out(
        self, tokens: npt.NDArray[np.unsignedinteger], rows: npt.NDArray[np.unsignedinteger]
    ) -> None:
        """Write the tokens of the spans, which are end to end, into rows [rows, row_tokens], and
        zeros behind them.
        """
        if tokens.size == rows.size:
            rows[:] = tokens.reshape(rows.shape)
            return
        rows[:] = 0
        rows[np.arange(self.row_tokens) < (self.row_tokens - self.padding)[:, None]] = tokens

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """Return the rows of several Spans, at least one, with the same row_tokens."""
        return cls(
            parts[0].row_tokens,
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.shard for part in parts]),
            np.concatenate([part.token_offset for part in parts]),
            None if all(part.are_windows for part in parts) else _joined_pieces(parts),
        )


def _joined_pieces(parts: Sequence[Spans]) -> Pieces:
    ends = np.cumsum([part.shard.size for part in parts])
    first_spans = [
        part.first_span[1:] + (end - part.shard.size) for part, end in zip(parts, ends, strict=True)
    ]
    return Pieces(
        np.concatenate([np.zeros(1, dtype=np.int64), *first_spans]),
        np.concatenate([part.token_count for part in parts]),
    )
