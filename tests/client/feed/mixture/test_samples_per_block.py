"""Weights as a user writes them, and as they are part of a stream."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.client.feed.mixture.samples_per_block import samples_per_block
from tokenfeed.errors import InvalidRequest


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"a": 0.7, "b": 0.2, "c": 0.1}, [70, 20, 10]),
        ({"a": 7, "b": 2, "c": 1}, [7, 2, 1]),
        ({"a": 70, "b": 30}, [70, 30]),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, [334, 333, 333]),
        ({"a": 0.99983, "b": 0.00017}, [99_983, 17]),
        ({"a": 0.5, "b": 0.0}, [100, 0]),
        ({"a": 1.0, "b": 3.0}, [1, 3]),
        ({"a": 2.5, "b": 7.5}, [25, 75]),
        ({"a": np.float64(0.7), "b": np.float32(0.5) - 0.2}, [70, 30]),
        ({"a": np.int64(3), "b": 0}, [3, 0]),
        ({"a": 2**20}, [2**20]),
    ],
)
def test_weights_become_the_samples_of_a_block(weights: dict[str, float], found: list[int]) -> None:
    """Integers as they are; shares in the smallest block that has them within 1 %."""
    assert list(samples_per_block(weights).values()) == found


@pytest.mark.parametrize(
    ("block", "found"), [(100, [35, 65]), (3, [1, 2]), (1000, [345, 655]), (None, [345, 655])]
)
def test_a_block_may_be_made_small(block: int | None, found: list[int]) -> None:
    """Weights change at the end of a block: who anneals wants short ones."""
    assert list(samples_per_block({"a": 0.345, "b": 0.655}, block).values()) == found


@pytest.mark.parametrize(
    ("weights", "block", "problem"),
    [
        ({"a": 0.0, "b": 0}, None, "weights: are all 0; at least one source needs a weight"),
        ({"a": -0.1, "b": 1}, None, "weights.a: -0.1 is negative; 0 pauses a source"),
        ({"a": math.nan}, None, "weights.a: nan is not a finite number"),
        ({"a": math.inf}, None, "weights.a: inf is not a finite number"),
        ({"a": True}, None, "weights.a: True is not a number"),
        ({"a": "0.5"}, None, "weights.a: '0.5' is not a number"),
        ({"a": 2**20, "b": 1}, None, "weights: have the sum 1048577, above the block of 1048576"),
        ({"a": 5, "b": 6}, 10, "weights: have the sum 11, above the block of 10 samples; divide"),
        (
            {"a": 1, "b": 1e-8},
            None,
            "weights.b: is a share of 1e-08, less than a sample of a block of 1000000; the "
            "smallest possible one is 1e-06; leave the source out, give it a larger weight, or "
            "give integers",
        ),
    ],
)
def test_weights_that_cannot_be_kept_are_refused(
    weights: dict[str, float], block: int | None, problem: str
) -> None:
    """The message names the source, the limit and the cure."""
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        samples_per_block(weights, block)


def test_two_hundred_mixtures_of_a_hundred_sources_are_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Log-normal, as sizes of corpora are. Most do not fit within 1 %: the log has the worst."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        caplog.clear()
        weights = dict(zip(map(str, range(100)), rng.lognormal(0, 1.5, 100).tolist(), strict=True))

        found = samples_per_block(weights)

        total = sum(weights.values())
        worst = max(
            abs(found[name] / sum(found.values()) / (weight / total) - 1)
            for name, weight in weights.items()
        )
        assert min(found.values()) > 0
        assert sum(found.values()) in (10**4, 10**5, 10**6)
        assert worst <= 0.01 + 1e-9 or "mixture rounded block=1000000 worst=" in caplog.text


@given(st.lists(st.floats(1, 100), min_size=1, max_size=5))
def test_shares_fill_the_block_and_none_is_a_sample_off(weights: list[float]) -> None:
    """By largest remainders."""
    found = samples_per_block({str(index): weight for index, weight in enumerate(weights)}, 500)
    block = sum(found.values())
    if not all(weight.is_integer() for weight in weights):
        assert block in (100, 500)
    for index, weight in enumerate(weights):
        assert abs(found[str(index)] - weight / math.fsum(weights) * block) < 1 + 1e-6
