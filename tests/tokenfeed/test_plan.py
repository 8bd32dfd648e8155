"""The plan: sample -> window, for any shape of corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tokenfeed import orders
from tokenfeed.errors import InvalidRequest, NotServed
from tokenfeed.plan import Plan


def counts(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


@given(
    token_counts=st.lists(st.integers(1, 60), min_size=1, max_size=8).filter(lambda n: max(n) > 1),
    order=st.sampled_from(list(orders.ORDERS)),
    seed=st.integers(0, 2**64 - 1),
    first_sample=st.integers(0, 2**62),
    data=st.data(),
)
def test_windows_are_those_of_the_second_implementation(
    token_counts: list[int], order: str, seed: int, first_sample: int, data: st.DataObject
) -> None:
    """Array arithmetic against loops over Python integers."""
    context_length = data.draw(st.integers(1, max(token_counts) - 1))
    plan = Plan(counts(*token_counts), context_length, orders.find(order), seed)
    samples = range(first_sample, first_sample + 20)

    windows = plan.windows(np.array(samples, dtype=np.int64))

    assert list(zip(windows.shard.tolist(), windows.token_offset.tolist(), strict=True)) == [
        reference.window(order, seed, token_counts, context_length, sample) for sample in samples
    ]


@pytest.mark.parametrize("order", ["shuffled-1", "sequential-1"])
def test_an_epoch_has_every_window_of_every_file_once_and_none_across_two(order: str) -> None:
    """Shards of unequal length, one of them shorter than T + 1."""
    plan = Plan(counts(21, 4, 9, 41), 5, orders.find(order), 3)

    windows = plan.windows(np.arange(plan.place_count, dtype=np.int64))

    found = sorted(zip(windows.shard.tolist(), windows.token_offset.tolist(), strict=True))
    assert found == [
        *((0, 5 * i) for i in range(4)),
        (2, 0),
        *((3, 5 * i) for i in range(8)),
    ]


def test_random_reaches_every_start_of_every_file() -> None:
    """The first and the last possible window of each included."""
    plan = Plan(counts(9, 5, 3), 4, orders.find("random-1"), 0)

    windows = plan.windows(np.arange(2000, dtype=np.int64))

    found = set(zip(windows.shard.tolist(), windows.token_offset.tolist(), strict=True))
    assert found == {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)}


def test_a_corpus_of_2_40_tokens_is_planned_without_loss() -> None:
    """numpy turns uint64 with int64 into float64, which is wrong above 2^53."""
    plan = Plan(counts(2**62, 2**61), 2**20, orders.find("random-1"), 0)

    windows = plan.windows(np.arange(1000, dtype=np.int64))

    assert windows.token_offset.dtype == np.int64
    assert set(windows.shard.tolist()) == {0, 1}
    assert len(set((windows.token_offset % 1024).tolist())) > 500


@pytest.mark.parametrize("context_length", [0, -1, 10, 11, 2**64])
def test_a_context_length_that_does_not_fit_is_named_with_its_limit(context_length: int) -> None:
    """T + 1 tokens have to fit into the longest file."""
    with pytest.raises(InvalidRequest, match=r"context_length: .* \[1, 10\)"):
        Plan(counts(10, 4), context_length, orders.find("random-1"), 0)


@pytest.mark.parametrize("name", ["random", "random-2", "RANDOM-1", "../x"])
def test_an_order_without_its_version_is_none(name: str) -> None:
    """The server never resolves "latest": a rolling upgrade must not serve two streams."""
    with pytest.raises(NotServed, match="order"):
        orders.find(name)


def test_no_order_at_all_is_random_1_for_ever() -> None:
    """The default on the wire never moves."""
    assert orders.find("").NAME == "random-1"
