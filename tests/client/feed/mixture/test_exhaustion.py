"""Where a mixture ends."""

from __future__ import annotations

import logging

import pytest

from client import Mixture
from client.feed.mixture.exhaustion import exhausted
from tokenfeed.stream.position import SAMPLE_END

T = 8
MIXTURE = Mixture(
    stages=[
        {"weights": {"web": 70, "code": 30}},
        {"first_sample": 1000, "weights": {"web": 40, "code": 20, "math": 40}},
        {"first_sample": 5000, "weights": {"math": 1, "web": 1}},
    ],
    sources={"math": {"max_epochs": 2}, "code": {"order": "random"}},
    order="shuffled",
    seed=9,
)


def logged(caplog: pytest.LogCaptureFixture, mixture: Mixture, rows: list[int]) -> int:
    """Where a mixture ends."""
    spec = mixture.schedule(T, "random", 0).spec()
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        return exhausted(spec, mixture.max_epochs, rows)


def test_the_log_names_the_source_and_where_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Before the first block that it cannot fill."""
    end = logged(caplog, MIXTURE, [10**6, 10**6, 450])

    assert end == 1000 + 100 * (900 // 40)
    assert f"source=math max_epochs=2 sample={end} tokens={end * T}" in caplog.text


def test_a_lone_source_ends_with_its_last_epoch(caplog: pytest.LogCaptureFixture) -> None:
    mixture = Mixture({"web": 1}, sources={"web": {"max_epochs": 3}}, order="shuffled")

    assert logged(caplog, mixture, [50]) == 150
    assert "source=web max_epochs=3 sample=150 tokens=1200" in caplog.text


def test_nothing_is_logged_if_no_source_is_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    mixture = Mixture({"web": 1}, order="shuffled")

    assert logged(caplog, mixture, [50]) == SAMPLE_END
    assert caplog.text == ""
