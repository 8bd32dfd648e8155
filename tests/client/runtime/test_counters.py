"""Waits in buckets."""

from __future__ import annotations

import pytest

from tokenfeed.client.runtime.counters import WAIT_BOUNDS_SECONDS, Counters


@pytest.mark.parametrize("bound", [0, 6, len(WAIT_BOUNDS_SECONDS) - 1])
def test_a_wait_as_long_as_a_bound_is_below_it(bound: int) -> None:
    """As a histogram of Prometheus has it: le is "less or equal"."""
    counters = Counters()

    for factor in (1.0, 1.001):
        counters.count_wait(factor * WAIT_BOUNDS_SECONDS[bound])

    assert [place for place, count in enumerate(counters.wait_counts) if count] == [
        bound,
        bound + 1,
    ]
    assert counters.wait_seconds == pytest.approx(2.001 * WAIT_BOUNDS_SECONDS[bound])
