"""Rows are planned far enough ahead, each of them once, and are those of the plan."""

from __future__ import annotations

import numpy as np
import pytest

from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import PLAN_ROWS, Shape, plan
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.rows.reader import PlannedRows
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream

POSITION = Position(first_sample=1000, batch_size=8, rank=1, world_size=3)
STREAM = Stream.of_dataset("", orders.find("shuffled-1"), 7, 16)
SHAPES = [Shape(np.array([5000, 90_000]))]


def expected(first_row: int, end_row: int) -> Spans:
    return plan(STREAM, SHAPES, POSITION.samples(first_row, end_row - first_row))


def require_same(found: Spans, first_row: int, end_row: int) -> None:
    wanted = expected(first_row, end_row)
    np.testing.assert_array_equal(found.shard, wanted.shard)
    np.testing.assert_array_equal(found.token_offset, wanted.token_offset)


@pytest.mark.parametrize("step", [1000, PLAN_ROWS, PLAN_ROWS + 1, 3 * PLAN_ROWS])
def test_rows_beyond_the_plan_are_planned_on_request(step: int) -> None:
    """The read-ahead needs rows beyond the plan, or the disk would be idle."""
    first_row, end_row, ahead = 5, 5 * PLAN_ROWS, 512
    rows = PlannedRows(STREAM, SHAPES, POSITION, first_row, end_row)
    looked_at = first_row
    for first in range(first_row, end_row, step):
        end = min(first + step, end_row)
        look_to = min(end + ahead, end_row)
        require_same(rows.rows(looked_at, end + ahead), looked_at, look_to)
        looked_at = look_to
        require_same(rows.rows(first, end), first, end)
        rows.discard_before(end)


def test_no_row_after_the_end_of_the_stream_is_planned() -> None:
    """There is no sample 2^63, and an epoch's padding must not be read."""
    rows = PlannedRows(STREAM, SHAPES, POSITION, 0, 10)

    require_same(rows.rows(0, 5000), 0, 10)
    rows.discard_before(10)
    assert rows.rows(10, 5000).shard.size == 0


def test_what_was_handed_out_is_not_kept() -> None:
    """A stream runs for weeks."""
    rows = PlannedRows(STREAM, SHAPES, POSITION, 0, 1 << 40)
    for first in range(0, 100 * PLAN_ROWS, 1000):
        rows.rows(first, first + 1000)
        rows.discard_before(first + 1000)
        assert rows._spans.shard.size <= 2 * PLAN_ROWS
