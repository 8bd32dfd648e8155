"""Samples <-> ranks, batches and rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, Position


@given(
    first_sample=st.integers(0, 2**62),
    batch_size=st.integers(1, 50),
    world_size=st.sampled_from([1, 2, 3, 8]),
    batches=st.integers(1, 6),
)
def test_the_ranks_together_have_every_sample_exactly_once(
    first_sample: int, batch_size: int, world_size: int, batches: int
) -> None:
    """No sample is trained on twice, none is left out, whatever the world size."""
    ranks = [Position(first_sample, batch_size, rank, world_size) for rank in range(world_size)]

    samples = np.concatenate([rank.samples(0, batches * batch_size) for rank in ranks])

    total = batches * batch_size * world_size
    assert sorted(samples.tolist()) == list(range(first_sample, first_sample + total))


@given(
    first_sample=st.integers(0, 2**62),
    batch_size=st.integers(1, 70),
    coordinates=st.integers(1, 2**20).flatmap(
        lambda size: st.tuples(st.integers(0, size - 1), st.just(size))
    ),
    first_row=st.integers(0, 10**6),
    row_count=st.integers(1, 200),
)
def test_rows_have_the_samples_that_the_formula_says(
    first_sample: int,
    batch_size: int,
    coordinates: tuple[int, int],
    first_row: int,
    row_count: int,
) -> None:
    """The vectorized arithmetic against one row at a time."""
    rank, world_size = coordinates
    position = Position(first_sample, batch_size, rank, world_size)

    samples = position.samples(first_row, row_count)

    assert samples.tolist() == [
        reference.sample_of(first_sample, batch_size, rank, world_size, row)
        for row in range(first_row, first_row + row_count)
    ]


@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_left_ends_exactly_below_sample_2_63(world_size: int) -> None:
    """One batch more would overflow an int64 and wrap to negative samples."""
    position = Position(SAMPLE_END - 100, 7, world_size - 1, world_size)

    last_row = position.batches_left * 7 - 1

    assert int(position.samples(last_row, 1)[0]) < SAMPLE_END
    past = reference.sample_of(SAMPLE_END - 100, 7, world_size - 1, world_size, last_row + 7)
    assert past >= SAMPLE_END


@given(
    first_sample=st.integers(0, 300),
    batch_size=st.integers(1, 7),
    coordinates=st.integers(1, 5).flatmap(
        lambda size: st.tuples(st.integers(0, size - 1), st.just(size))
    ),
    end_sample=st.integers(0, 600),
)
def test_the_rows_before_a_sample_are_those_that_the_formula_puts_below_it(
    first_sample: int, batch_size: int, coordinates: tuple[int, int], end_sample: int
) -> None:
    """A call that ends at a sample, within a batch and on any rank, against one row at a time."""
    rank, world_size = coordinates
    position = Position(first_sample, batch_size, rank, world_size)

    rows = position.rows_before(end_sample)

    samples = [
        reference.sample_of(first_sample, batch_size, rank, world_size, row)
        for row in range(rows + 2 * batch_size)
    ]
    assert [sample < end_sample for sample in samples] == [True] * rows + [False] * 2 * batch_size


@pytest.mark.parametrize(
    ("rank", "world_size"), [(0, 1), (0, 3), (1, 3), (2, 3), (0, WORLD_SIZE_MAX)]
)
@pytest.mark.parametrize("batch_size", [1, 7, BATCH_SIZE_MAX])
def test_the_rows_before_sample_2_63_have_samples_and_the_next_one_has_none(
    rank: int, world_size: int, batch_size: int
) -> None:
    """With end_sample a call goes on to the very last sample, also within a batch."""
    first_sample = SAMPLE_END - 100 - rank * batch_size
    position = Position(first_sample, batch_size, rank, world_size)

    rows = position.rows_before(SAMPLE_END)

    last = reference.sample_of(first_sample, batch_size, rank, world_size, rows - 1)
    assert int(position.samples(rows - 1, 1)[0]) == last < SAMPLE_END
    following = reference.sample_of(first_sample, batch_size, rank, world_size, rows)
    assert following >= SAMPLE_END
    assert rows // batch_size == position.batches_left


def test_no_row_is_before_the_first_sample_of_its_rank() -> None:
    """Rank 1 begins where rank 0 has ended its batch."""
    position = Position(100, 4, 1, 3)

    counted = [position.rows_before(sample) for sample in (0, 99, 100, 104, 105, 108, 112, 117)]

    assert counted == [0, 0, 0, 0, 1, 4, 4, 5]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": BATCH_SIZE_MAX + 1}, "batch_size"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": WORLD_SIZE_MAX + 1}, "world_size"),
        ({"rank": 1}, "rank"),
        ({"rank": -1}, "rank"),
        ({"first_sample": -1}, "first_sample"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, int], field: str) -> None:
    """The user reads the name of the argument and its limit, not a stack of numbers."""
    values = {"first_sample": 0, "batch_size": 1, "rank": 0, "world_size": 1} | fields

    with pytest.raises(InvalidRequest, match=f"^{field}: -?[0-9]+ ") as caught:
        Position(**values)

    assert caught.value.subject == field


def test_a_sample_of_2_63_is_refused() -> None:
    """It does not fit an int64."""
    with pytest.raises(SamplesExhausted, match="first_sample"):
        Position(SAMPLE_END, 1)


def test_an_error_survives_pickling() -> None:
    """Launchers and loaders hand exceptions from process to process."""
    error = pickle.loads(pickle.dumps(InvalidRequest("rank", "3 is not in [0, 2)")))

    assert (type(error), error.subject, str(error)) == (
        InvalidRequest,
        "rank",
        "rank: 3 is not in [0, 2)",
    )
