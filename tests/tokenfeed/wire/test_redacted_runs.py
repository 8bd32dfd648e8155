"""Plane 53: what is written is read, of all rows and of some."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.wire import redacted_runs
from tokenfeed.wire.row_block import Plane, RowBlock

T = 9
ROWS = st.lists(st.sets(st.integers(0, T)), max_size=8)
"""The redacted tokens of each row."""


def plane_of(rows: list[set[int]]) -> Plane:
    """Each token by itself: those that touch become one run."""
    found = np.array([(row, j) for row, each in enumerate(rows) for j in sorted(each)], np.int64)
    row, token = found.reshape(-1, 2).T
    return redacted_runs.plane_of(len(rows), row, token, token + 1)


@given(rows=ROWS, data=st.data())
def test_runs_are_read_as_written_of_any_rows(rows: list[set[int]], data: st.DataObject) -> None:
    """Wherever a batch begins in a frame, whether the frame was read before or not."""
    plane = plane_of(rows)
    assert redacted_runs.are_valid(plane, T + 1)
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    block = RowBlock(np.zeros((len(rows), T + 1), np.uint16), (plane,))
    for whole in (block, redacted_runs.with_runs(block)):
        (part,) = whole[first:end].planes
        tokens: list[set[int]] = [set() for _ in range(end - first)]
        for row, begin, stop in redacted_runs.runs_of(part):
            assert not {begin - 1, stop} & tokens[row]
            tokens[row] |= set(range(begin, stop))
        assert tokens == rows[first:end]
        assert part.content.tobytes() == block[first:end].planes[0].content.tobytes()


@pytest.mark.parametrize(
    "rows",
    [
        [[(0, T + 2)]],
        [[(3, 3)]],
        [[(4, 3)]],
        [[(0, 2), (2, 4)]],
        [[], [(5, 7), (1, 2)]],
    ],
)
def test_runs_that_no_row_has_are_refused(rows: list[list[tuple[int, int]]]) -> None:
    """What reads them relies on it."""
    runs = [run for row in rows for run in row]
    lengths = np.array([8 * len(row) for row in rows], np.uint32)
    content = np.array(runs, "<u4").reshape(-1).view(np.uint8)
    assert not redacted_runs.are_valid(Plane(53, lengths, content), T + 1)


def test_halves_of_runs_are_refused() -> None:
    """The bytes of two rows may add up to one run."""
    plane = Plane(53, np.array([4, 4], np.uint32), np.array([1, 2], "<u4").view(np.uint8))
    assert not redacted_runs.are_valid(plane, T + 1)
