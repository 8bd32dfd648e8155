"""Where the tokens of rows come from: the answer of a plan, and the question to a store.

Pure arrays. A row of plain windows is one span; a row of an order over documents is several, end
to end, and then padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Runs of consecutive tokens, in the order of the rows that they make up.

    row_tokens: tokens of a row, T + 1; what its spans leave of them is padding at its end.
    first_span: int64[rows + 1]; row r has the spans [first_span[r], first_span[r + 1]).
    source, shard: int64[spans], which source of the stream, and which file of that one.
    token_offset, token_count: int64[spans], where in that file, and how many, at least 1.
    are_windows: whether each row is one span of row_tokens tokens.
    """

    row_tokens: int
    first_span: Numbers
    source: Numbers
    shard: Numbers
    token_offset: Numbers
    token_count: Numbers
    are_windows: bool = False

    @classmethod
    def of_windows(
        cls, row_tokens: int, shard: Numbers, token_offset: Numbers, source: int = 0
    ) -> Spans:
        """Return one span of row_tokens tokens for each row.  shard, token_offset: int64[rows]."""
        rows = shard.size
        return cls(
            row_tokens,
            np.arange(rows + 1),
            np.full(rows, source),
            shard,
            token_offset,
            np.full(rows, row_tokens),
            are_windows=True,
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.first_span.size - 1

    def __getitem__(self, rows: slice) -> Spans:
        """Return the spans of consecutive rows, without copying those."""
        first, end, _ = rows.indices(self.first_span.size - 1)
        end = max(first, end)
        if self.are_windows:
            # A span a row: twice as fast, and what most frames are made of.
            return Spans(
                self.row_tokens,
                self.first_span[: end - first + 1],
                self.source[first:end],
                self.shard[first:end],
                self.token_offset[first:end],
                self.token_count[first:end],
                True,
            )
        span = slice(int(self.first_span[first]), int(self.first_span[end]))
        return Spans(
            self.row_tokens,
            self.first_span[first : end + 1] - span.start,
            self.source[span],
            self.shard[span],
            self.token_offset[span],
            self.token_count[span],
            self.are_windows,
        )

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """Return the rows of several, at least one, all of the same row_tokens."""
        ends = np.cumsum([part.shard.size for part in parts])
        first_spans = [
            part.first_span[1:] + (end - part.shard.size)
            for part, end in zip(parts, ends, strict=True)
        ]
        return cls(
            parts[0].row_tokens,
            np.concatenate([np.zeros(1, dtype=np.int64), *first_spans]),
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.shard for part in parts]),
            np.concatenate([part.token_offset for part in parts]),
            np.concatenate([part.token_count for part in parts]),
            all(part.are_windows for part in parts),
        )
