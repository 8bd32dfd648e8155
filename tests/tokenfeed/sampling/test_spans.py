"""Spans: rows as runs of tokens, taken apart and put together again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.sampling.spans import Pieces, Spans

ROW_TOKENS = 9
Span = tuple[int, int, int, int]
"""Source, file, first token, tokens."""
SPAN = st.tuples(
    st.integers(0, 3), st.integers(0, 5), st.integers(0, 2**62), st.integers(1, ROW_TOKENS)
)
ROWS = st.lists(st.lists(SPAN, max_size=4), max_size=8)


def spans_of(rows: list[list[Span]]) -> Spans:
    """Rows of any number of spans, none included: such a row is all padding."""
    flat = np.array([span for row in rows for span in row], dtype=np.int64).reshape(-1, 4)
    ends = np.cumsum([0, *map(len, rows)])
    return Spans(ROW_TOKENS, flat[:, 0], flat[:, 1], flat[:, 2], Pieces(ends, flat[:, 3]))


def rows_of(spans: Spans) -> list[list[Span]]:
    """The way back, one span at a time."""
    firsts = spans.first_span.tolist()
    columns = (spans.source, spans.shard, spans.token_offset, spans.token_count)
    flat = list(zip(*(column.tolist() for column in columns), strict=True))
    assert firsts[0] == 0
    assert firsts[-1] == len(flat)
    return [flat[firsts[row] : firsts[row + 1]] for row in range(len(spans))]


def test_a_window_is_one_span_of_all_tokens_of_its_row() -> None:
    """A store reads it in one piece, without looking for others."""
    shard, token_offset = np.array([3, 0, 3]), np.array([50, 2**62, 0])

    spans = Spans.of_windows(ROW_TOKENS, shard, token_offset, source=2)

    assert spans.are_windows
    assert len(spans) == 3
    assert rows_of(spans) == [
        [(2, 3, 50, ROW_TOKENS)],
        [(2, 0, 2**62, ROW_TOKENS)],
        [(2, 3, 0, ROW_TOKENS)],
    ]


@given(rows=ROWS, data=st.data())
def test_a_slice_has_the_rows_that_a_slice_of_a_list_has(
    rows: list[list[Span]], data: st.DataObject
) -> None:
    """Frames are cut out of what was planned at once, rows without a span included."""
    bound = st.none() | st.integers(-10, 10)
    part = slice(data.draw(bound), data.draw(bound))

    found = spans_of(rows)[part]

    assert rows_of(found) == rows[part]
    assert found.row_tokens == ROW_TOKENS
    assert rows_of(found[1:]) == rows[part][1:]


@given(parts=st.lists(ROWS, min_size=1, max_size=5))
def test_joined_rows_are_those_of_one_part_after_another(parts: list[list[list[Span]]]) -> None:
    """What was planned in several pieces is read in one."""
    joined = Spans.joined([spans_of(rows) for rows in parts])

    assert rows_of(joined) == [row for rows in parts for row in rows]
    assert joined.row_tokens == ROW_TOKENS


@given(rows=ROWS, data=st.data())
def test_rows_that_were_cut_apart_join_to_the_same_rows(
    rows: list[list[Span]], data: st.DataObject
) -> None:
    """Nothing is lost at the borders between pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    spans = spans_of(rows)
    borders = [0, *cuts, len(rows)]

    joined = Spans.joined([spans[first:end] for first, end in pairwise(borders)])

    assert rows_of(joined) == rows


def test_windows_stay_windows_and_nothing_else_becomes_some() -> None:
    """A store takes a shorter way for windows; for any other rows it would be the wrong one."""
    windows = Spans.of_windows(ROW_TOKENS, np.array([0, 1]), np.array([5, 7]))
    packed = spans_of([[(0, 0, 0, 4), (0, 0, 9, 5)]])

    assert windows[1:].are_windows
    assert Spans.joined([windows, windows[:1]]).are_windows
    assert not packed[:1].are_windows
    assert not Spans.joined([windows, packed]).are_windows


def test_a_slice_and_the_whole_share_their_memory() -> None:
    """Cutting a plan into frames costs the same whatever its size."""
    spans = Spans.of_windows(ROW_TOKENS, np.arange(100), np.arange(100))

    assert np.shares_memory(spans[10:90].token_offset, spans.token_offset)
