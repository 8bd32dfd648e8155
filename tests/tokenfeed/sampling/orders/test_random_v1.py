"""`random-1` draws windows uniformly and reproducibly."""

from __future__ import annotations

import numpy as np
import pytest

from tokenfeed.sampling.orders import random_v1


def chi_squared_sigmas(counts: np.ndarray) -> float:
    """How far counts are from uniform, in standard deviations of the chi-squared distribution."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = counts.size - 1
    return (statistic - degrees) / (2 * degrees) ** 0.5


@pytest.mark.parametrize("place_count", [2, 3, 1000, 65_537])
@pytest.mark.parametrize("first_sample", [0, 2**53, 2**62])
def test_places_are_uniform(place_count: int, first_sample: int) -> None:
    """A corpus of which parts are drawn more often is another corpus."""
    samples = np.arange(first_sample, first_sample + 2_000_000, dtype=np.int64)

    places = random_v1.places(samples, 1337, place_count)

    assert abs(chi_squared_sigmas(np.bincount(places, minlength=place_count))) < 4


def test_the_first_and_the_last_place_are_reached() -> None:
    """The classic randint(0, n - T - 1) never serves the last window."""
    places = random_v1.places(np.arange(20_000, dtype=np.int64), 0, 1000)

    assert (places.min(), places.max()) == (0, 999)


def test_places_beyond_32_bits_are_uniform_too() -> None:
    """The 128-bit product is put together from 32-bit halves: each of them has to count."""
    place_count = 3 * 2**61

    places = random_v1.places(np.arange(1_000_000, dtype=np.int64), 7, place_count)

    assert places.min() >= 0
    assert places.max() < place_count
    high = np.bincount(places // 2**51, minlength=3 * 2**10)
    low = np.bincount(places % 4096, minlength=4096)
    assert abs(chi_squared_sigmas(high)) < 4
    assert abs(chi_squared_sigmas(low)) < 4


@pytest.mark.parametrize(("seed", "other"), [(0, 1), (1, 2**32 + 1), (5, 2**63 + 5)])
def test_two_seeds_have_nothing_in_common(seed: int, other: int) -> None:
    """Seeds are 64 bits: cutting them to 32 would make two of them the same run."""
    samples = np.arange(100_000, dtype=np.int64)

    one, two = (random_v1.places(samples, key, 2**40) for key in (seed, other))

    assert abs(np.corrcoef(one, two)[0, 1]) < 4 / len(samples) ** 0.5
    assert np.intersect1d(one, two).size < 5


def test_neighbouring_samples_are_independent() -> None:
    """A counter is hashed: what follows must not show it."""
    places = random_v1.places(np.arange(1_000_000, dtype=np.int64), 3, 10**9)

    for lag in (1, 2, 32, 4096):
        correlation = np.corrcoef(places[:-lag], places[lag:])[0, 1]
        assert abs(correlation) < 4 / len(places) ** 0.5
