"""The planes of rows of pieces, against a loop over the pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.sampling.spans import Pieces, Spans
from tokenfeed.stream.planes import DOCUMENT_STARTS, TOKEN_COUNTS
from tokenfeed.wire.piece_planes import OF_PIECES

ROWS = st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=6), max_size=8)


def spans_of(rows: list[list[int]]) -> Spans:
    """Rows of pieces of these lengths."""
    counts = np.array([count for row in rows for count in row], np.int64)
    first = np.cumsum([0, *map(len, rows)])
    zeros = np.zeros_like(counts)
    return Spans(64, zeros, zeros, zeros, Pieces(first, counts))


@given(rows=ROWS)
def test_a_row_says_where_its_pieces_begin_and_how_many_tokens_it_has(
    rows: list[list[int]],
) -> None:
    """The first piece begins with the row, and is not listed."""
    spans = spans_of(rows)
    starts, counts = OF_PIECES[DOCUMENT_STARTS](spans), OF_PIECES[TOKEN_COUNTS](spans)

    expected = [np.cumsum(row)[:-1].tolist() for row in rows]
    assert starts.row_lengths.tolist() == [4 * len(own) for own in expected]
    assert starts.content.view("<u4").tolist() == [start for own in expected for start in own]
    assert counts.row_lengths.tolist() == [4] * len(rows)
    assert counts.content.view("<u4").tolist() == [sum(row) for row in rows]
