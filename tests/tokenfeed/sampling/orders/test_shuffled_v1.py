"""`shuffled-1` is a permutation per epoch, and shows no structure."""

from __future__ import annotations

from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.sampling.orders import shuffled_v1


def epoch(place_count: int, number: int, seed: int = 1337) -> np.ndarray:
    samples = np.arange(place_count, dtype=np.int64) + number * place_count
    return shuffled_v1.places(samples, seed, place_count)


@given(
    place_count=st.integers(1, 3000),
    number=st.integers(0, 2**40),
    seed=st.integers(0, 2**64 - 1),
)
def test_an_epoch_visits_every_window_once(place_count: int, number: int, seed: int) -> None:
    """Nothing lost, nothing repeated, at any size, epoch and seed."""
    assert np.array_equal(np.sort(epoch(place_count, number, seed)), np.arange(place_count))


def test_a_large_epoch_visits_every_window_once() -> None:
    """The many rounds of array arithmetic lose nothing at a million windows."""
    assert np.array_equal(np.sort(epoch(1_000_003, 5)), np.arange(1_000_003))


@given(place_count=st.integers(1, 100), first=st.integers(0, 10**6), size=st.integers(1, 250))
def test_samples_planned_together_and_one_by_one_are_the_same(
    place_count: int, first: int, size: int
) -> None:
    """A plan may begin and end anywhere, also across the ends of epochs."""
    samples = np.arange(first, first + size, dtype=np.int64)

    together = shuffled_v1.places(samples, 9, place_count)

    alone = [int(shuffled_v1.places(samples[i : i + 1], 9, place_count)[0]) for i in range(size)]
    assert together.tolist() == alone


def test_no_two_epochs_and_no_two_seeds_have_the_same_order() -> None:
    """Keyed by seed and epoch as 128 bits: epoch 1 of seed 0 is not epoch 0 of seed 1."""
    orders = {
        tuple(epoch(50, number, seed).tolist())
        for number in (0, 1, 2, 2**32, 2**40)
        for seed in (0, 1, 2, 2**32, 2**63)
    }

    assert len(orders) == 25


@pytest.mark.parametrize("place_count", [2, 3, 4, 5, 6, 7])
def test_every_permutation_of_few_windows_is_equally_likely(place_count: int) -> None:
    """With 12 rounds, or with both sides odd, some permutations came up far too often."""
    epochs = 200_000
    samples = np.arange(epochs * place_count, dtype=np.int64)

    orders = shuffled_v1.places(samples, 1, place_count).reshape(epochs, place_count)

    counts = Counter((orders @ place_count ** np.arange(place_count)).tolist())
    possible = factorial(place_count)
    expected = epochs / possible
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == possible
    assert abs(statistic - (possible - 1)) < 4 * (2 * (possible - 1)) ** 0.5


@pytest.mark.parametrize("place_count", [9, 12, 20, 64, 65, 100, 300])
def test_every_window_is_equally_likely_at_every_place_and_after_every_other(
    place_count: int,
) -> None:
    """Few rounds show in what follows what, long before they show anywhere else."""
    epochs = 3_000_000 // place_count
    samples = np.arange(epochs * place_count, dtype=np.int64)

    orders = shuffled_v1.places(samples, 1, place_count).reshape(epochs, place_count)

    at_place = np.stack([np.bincount(column, minlength=place_count) for column in orders.T])
    expected = epochs / place_count
    degrees = (place_count - 1) ** 2
    statistic = float(((at_place - expected) ** 2 / expected).sum())
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5
    steps = np.bincount(((orders[:, 1:] - orders[:, :-1]) % place_count).ravel())[1:]
    expected = steps.sum() / steps.size
    statistic = float(((steps - expected) ** 2 / expected).sum())
    assert abs(statistic - (steps.size - 1)) < 4 * (2 * (steps.size - 1)) ** 0.5


@pytest.mark.parametrize("place_count", [1000, 100_003, 1 << 20])
def test_the_order_has_no_correlation_with_the_file_or_with_itself(place_count: int) -> None:
    """Documents that lie together in the file must not come together."""
    order = epoch(place_count, 3)
    limit = 4 / place_count**0.5

    with_file = np.corrcoef(order, np.arange(place_count))[0, 1]
    with_next = np.corrcoef(order[:-1], order[1:])[0, 1]
    with_next_epoch = np.corrcoef(order, epoch(place_count, 4))[0, 1]

    assert abs(with_file) < limit
    assert abs(with_next) < limit
    assert abs(with_next_epoch) < limit
    assert np.mean(np.abs(np.diff(order)) == 1) < 10 / place_count + limit / 10


def test_hardly_a_window_has_to_walk() -> None:
    """Walking costs another pass over the rounds: with sides of whole bits it would be half."""
    for place_count in (1001, 10**6 + 1, 2**30 + 1, 2**40 + 12345):
        side_a, side_b = shuffled_v1._sides(place_count)
        assert side_a % 2 == 0
        assert 0 <= side_a * side_b - place_count < side_a
