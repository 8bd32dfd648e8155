"""The arithmetic of an epoch: who gets which samples, and what becomes of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.client.feed.epochs import EpochPlan
from tokenfeed.client.feed.options import Tail
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Share, Stage

STAGE = Stage(0, 0, 8, (Share(0, 1, 0),))
WORLDS = st.tuples(
    st.integers(0, 200), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.integers(0, 40)
)


def plans(
    windows: int, batch_size: int, world_size: int, epoch: int, tail: Tail
) -> list[EpochPlan]:
    return [
        EpochPlan(windows, Position(0, batch_size, rank, world_size), epoch, tail, STAGE)
        for rank in range(world_size)
    ]


def own_samples(plan: EpochPlan, first_sample: int) -> list[list[int]]:
    """Per batch, the samples that are of the epoch."""
    found = []
    for batch in range(plan.batch_count(first_sample)):
        sample = first_sample + batch * plan.position.stride
        position = replace(plan.position, first_sample=sample)
        first, end = position.sample_of(0), min(plan.own_end(sample), plan.end_sample)
        rows = min(position.rows_before(end), position.batch_size)
        found.append(list(range(first, first + rows)))
    return found


@pytest.mark.parametrize("tail", ["wrap", "pad"])
@given(world=WORLDS)
def test_padded_and_wrapped_epochs_hold_each_sample_exactly_once(
    tail: Tail, world: tuple[int, int, int, int, int]
) -> None:
    """An evaluation counts each window once, wherever it begins."""
    windows, batch_size, world_size, epoch, skipped = world
    every = plans(windows, batch_size, world_size, epoch, tail)
    first = every[0].first_sample + min(skipped, windows)

    found = [sample for plan in every for batch in own_samples(plan, first) for sample in batch]

    assert sorted(found) == list(range(first, epoch * windows + windows))
    assert every[0].dropped_count(first) == 0


@given(world=WORLDS)
def test_a_dropped_tail_is_less_than_a_batch_of_all_ranks_and_is_counted(
    world: tuple[int, int, int, int, int],
) -> None:
    """Nothing is lost silently."""
    windows, batch_size, world_size, epoch, skipped = world
    every = plans(windows, batch_size, world_size, epoch, "drop")
    first = every[0].first_sample + min(skipped, windows)

    batches = [own_samples(plan, first) for plan in every]
    found = sorted(sample for own in batches for batch in own for sample in batch)

    dropped = every[0].dropped_count(first)
    assert found == list(range(first, every[0].end_sample - dropped))
    assert 0 <= dropped < batch_size * world_size
    assert all(len(batch) == batch_size for own in batches for batch in own)


@given(
    windows=st.integers(1, 50),
    base=st.integers(0, 300),
    first_sample=st.integers(0, 300),
    epoch=st.integers(0, 9),
)
def test_behind_a_change_an_epoch_is_that_of_its_source(
    windows: int, base: int, first_sample: int, epoch: int
) -> None:
    """The stage begins with another of the source's own samples than the stream is at."""
    stage = Stage(1, first_sample, 8, (Share(0, 1, base),))
    plan = EpochPlan(windows, Position(0, 1, 0, 1), epoch, "drop", stage)

    own = [base + sample - first_sample for sample in (plan.first_sample, plan.end_sample)]

    assert own == [epoch * windows, (epoch + 1) * windows]
