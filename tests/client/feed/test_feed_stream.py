"""What a feed reads, after many changes, and where it ends."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable

import pytest

from client import Mixture
from tests.client.feed.imagined import (
    Corpus,
    changed,
    deliver,
    feed_of,
    load,
    moved,
    rows_of,
    state_of,
)
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.state import SHARES_MAX, STAGES_MAX
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END

HUNDRED = {f"source-{number}": Corpus((3000,), number) for number in range(100)}
PAIR = {name: HUNDRED[name] for name in list(HUNDRED)[:2]}
EQUAL = dict.fromkeys(HUNDRED, 1)


def weights_of(corpora: dict[str, Corpus], change: int) -> dict[str, int]:
    """Other ones at each change."""
    return {name: 1 + (index + change) % 3 for index, name in enumerate(corpora)}


def calls_of(act: Callable[[], object]) -> int:
    """How many functions are called meanwhile: the same number on a fast and on a slow machine."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        act()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")


@pytest.fixture(scope="module", params=[150, pytest.param(1000, marks=pytest.mark.proof)])
def changes(request: pytest.FixtureRequest) -> int:
    """How often weights were changed: several times as often as is kept of a hundred sources."""
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def long_run(changes: int) -> FeedStream:
    """A feed whose weights were changed so often, each time after a while."""
    feed = feed_of(HUNDRED, mixture=EQUAL, seed=3)
    for change in range(changes):
        feed = changed(feed, weights_of(HUNDRED, change))
        feed.cursor.seek(feed.stream.stages[-1].first_sample)
        deliver(feed)
    return feed


def pair_of_stages(count: int) -> FeedStream:
    """A feed whose definition has so many stages."""
    stages = [
        {"first_sample": 10 * stage, "weights": weights_of(PAIR, stage)} for stage in range(count)
    ]
    return feed_of(PAIR, mixture=Mixture(stages=stages), seed=3)


@pytest.fixture(scope="module")
def pair_run() -> FeedStream:
    """A feed whose definition has as many stages as a state keeps, and 40 changes behind them."""
    feed = pair_of_stages(STAGES_MAX)
    deliver(feed, 3)
    for change in range(STAGES_MAX, STAGES_MAX + 40):
        feed = changed(feed, weights_of(PAIR, change), 10 * change)
        feed.cursor.seek(feed.stream.stages[-1].first_sample)
        deliver(feed)
    return feed


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_state_after_many_changes_of_a_hundred_sources_costs_next_to_nothing(
    long_run: FeedStream,
) -> None:
    """It is taken beside a training step, and loaded by each of a thousand ranks at once."""
    state = state_of(long_run)
    own = feed_of(HUNDRED, mixture=EQUAL, seed=3)

    text = json.dumps(state)

    assert len(text) < 200_000
    assert calls_of(lambda: state_of(long_run)) < 1_000
    assert calls_of(lambda: load(own, json.loads(text))) < 500_000


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_after_many_changes_the_newest_are_kept_and_the_feed_goes_on_as_if_all_were(
    long_run: FeedStream, changes: int
) -> None:
    """The identity before them and the bases stand for those that are gone."""
    stages = long_run.stream.stages
    assert stages[-1].index == changes
    assert stages[0].index > changes / 2
    assert sum(len(stage.shares) for stage in stages) <= SHARES_MAX
    assert len(state_of(long_run)["history"]) == len(long_run.told(long_run.cursor.now[2]).runs)
    own = feed_of(HUNDRED, mixture=EQUAL, seed=3)

    found = load(own, json.loads(json.dumps(state_of(long_run))))

    assert not found.messages
    begin, end = stages[0].first_sample, found.stream.cursor.sample + 500
    assert rows_of(found.stream.known(), range(begin, end)) == rows_of(
        long_run.known(), range(begin, end)
    )
    for feed in (long_run, found.stream):
        later = changed(feed, {"source-1": 1, "source-7": 2})
        assert later.known() == changed(long_run, {"source-1": 1, "source-7": 2}).known()


def test_of_two_sources_a_thousand_stages_are_kept(pair_run: FeedStream) -> None:
    """And a history without the runs of those that are gone, whose rows nobody knows any more."""
    stages = pair_run.stream.stages
    assert [len(stages), stages[-1].index] == [STAGES_MAX, STAGES_MAX + 39]
    history = pair_run.told(pair_run.cursor.now[2])
    assert history.first_batch == 3
    assert history.runs[0].first_sample >= stages[0].first_sample
    assert history.runs[-1].end_sample == pair_run.cursor.sample

    found = load(pair_of_stages(STAGES_MAX), state_of(pair_run)).stream

    assert found.known() == pair_run.known()
    assert found.cursor.now[2] == history


def test_after_many_changes_identities_are_those_of_the_stream_with_all_stages(
    pair_run: FeedStream,
) -> None:
    """An auditor who has the whole file computes the same."""
    whole = pair_of_stages(STAGES_MAX + 40).known()

    assert len(whole.stages) == STAGES_MAX + 40
    assert whole.stages[-STAGES_MAX:] == pair_run.known().stages
    assert whole.identity(SAMPLE_END) == pair_run.known().identity(SAMPLE_END)


# --- where a mixture ends ---

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


def ending(mixture: Mixture, **rows: int) -> FeedStream:
    """A feed of corpora with so many windows."""
    corpora = {
        name: Corpus((count * T + 1,), number) for number, (name, count) in enumerate(rows.items())
    }
    return feed_of(corpora, context_length=T, mixture=mixture)


def test_the_log_names_the_source_and_where_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Before the first block that it cannot fill."""
    feed = ending(MIXTURE, web=10**6, code=10**6, math=450)

    end = feed.end_sample()

    assert end == 1000 + 100 * (900 // 40)
    assert f"source=math max_epochs=2 sample={end} tokens={end * T}" in caplog.text
    assert moved(feed, end).end_sample() == end


def test_a_lone_source_ends_with_its_last_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Not a sample of the next one comes."""
    mixture = Mixture({"web": 1}, sources={"web": {"max_epochs": 3}}, order="shuffled")

    assert ending(mixture, web=50).end_sample() == 150
    assert "source=web max_epochs=3 sample=150 tokens=1200" in caplog.text


def test_nothing_is_logged_if_no_source_is_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    """A warning that is always there is not read."""
    with caplog.at_level(logging.WARNING):
        assert ending(Mixture({"web": 1}, order="shuffled"), web=50).end_sample() == SAMPLE_END
    assert caplog.text == ""


def test_a_source_without_enough_for_one_block_is_refused_before_the_first_batch() -> None:
    """The feed would end at once, without a word."""
    mixture = Mixture({"web": 70, "math": 30}, sources={"math": {"max_epochs": 2}}, seed=1)

    with pytest.raises(
        InvalidRequest, match=r"^sources.math.max_epochs: is 2, which are 20 samples, but the first"
    ):
        ending(mixture, web=50, math=10).end_sample()


def test_a_mixture_that_goes_on_ends_where_its_source_does_all_the_same() -> None:
    """The limit is the definition's, and no part of a state."""
    mixture = Mixture({"web": 1, "math": 1}, sources={"math": {"max_epochs": 2}}, order="shuffled")
    feed = ending(mixture, web=50, math=10)
    deliver(feed, 12)

    found = load(ending(mixture, web=50, math=10), state_of(feed)).stream

    assert feed.end_sample() == found.end_sample() == 40
    longer = Mixture({"web": 1, "math": 1}, sources={"math": {"max_epochs": 4}}, order="shuffled")
    assert load(ending(longer, web=50, math=10), state_of(feed)).stream.end_sample() == 80
