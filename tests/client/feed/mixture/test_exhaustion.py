"""Where a mixture ends, and the mixture that is logged to go on."""

from __future__ import annotations

import logging

import pytest

from client import Mixture
from client.feed.mixture.exhaustion import exhausted
from tokenfeed.stream.identity import Corpus
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


def logged(caplog: pytest.LogCaptureFixture, mixture: Mixture, rows: list[int]) -> tuple[int, str]:
    """Where a mixture ends, and what the log has after the line that says so."""
    spec = mixture.schedule(T, "random", 0).spec()
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        end = exhausted(spec, mixture.max_epochs, rows)
    _, _, rest = caplog.text.partition(" tokens=")
    return end, rest.partition("\n")[2]


def test_the_log_has_the_mixture_that_goes_on_to_copy(caplog: pytest.LogCaptureFixture) -> None:
    """It has the same stream before that sample, so the state of this feed fits it."""
    end, rest = logged(caplog, MIXTURE, [10**6, 10**6, 450])

    intro, _, text = rest.partition("\n\n")
    assert intro == "this mixture goes on without it:"
    assert end == 1000 + 100 * (900 // 40)
    copied = Mixture.parse(text.encode(), "copied").schedule(T, "sequential", 1)
    own = MIXTURE.schedule(T, "random", 0)
    before = [stage for stage in own.effective() if stage.first_sample < end]
    assert list(copied.effective()[:2]) == before
    assert copied.sources == own.sources
    assert copied.effective()[2].first_sample == end
    assert copied.effective()[2].weights == (40, 20, 0)
    assert copied.effective()[3].weights == (1, 0, 0)
    assert copied.continued(own.spec().parts([Corpus(bytes(32))] * 3), end, allow=False) == (
        copied,
        (),
    )


def test_a_mixture_that_nothing_is_left_of_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    mixture = Mixture({"web": 1}, sources={"web": {"max_epochs": 3}}, order="shuffled")

    assert logged(caplog, mixture, [50]) == (150, "")
    assert "source=web max_epochs=3 sample=150 tokens=1200" in caplog.text


def test_nothing_is_logged_if_no_source_is_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    mixture = Mixture({"web": 1}, order="shuffled")

    assert logged(caplog, mixture, [50]) == (SAMPLE_END, "")
    assert caplog.text == ""


def test_a_mixture_of_a_thousand_stages_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stages = [{"first_sample": 10 * k, "weights": {"a": 3, "b": k % 2 + 1}} for k in range(1000)]
    mixture = Mixture(stages=stages, sources={"a": {"max_epochs": 1}}, order="shuffled")

    _, rest = logged(caplog, mixture, [100, 100])

    assert rest == "tokenfeed plan --write FILE writes the mixture that goes on without it\n"
