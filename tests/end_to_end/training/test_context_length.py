"""A run that resumes at another context length, against a second implementation's windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest, RemoteBatches, StreamMismatch
from tests.conftest import Serve, Server, WriteTokens
from tests.support.offline import offline_rows, received_rows
from tests.support.ports import free_port

TOKENS = 1630
LONG, SHORT = 16, 8
WINDOWS = {LONG: 101, SHORT: 203}
OpenFeed = Callable[..., RemoteBatches]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(TOKENS))


@pytest.fixture
def server(serve: Serve, path: Path) -> Server:
    return serve("--data", path, port=free_port())


@pytest.fixture
def open_feed(server: Server) -> Iterator[OpenFeed]:
    """Open feeds of one server: open_feed(context_length, order="shuffled", ...)."""
    opened: list[RemoteBatches] = []

    def start(context_length: int, order: str = "shuffled", **arguments: Any) -> RemoteBatches:
        feed = RemoteBatches(server.address, 1, context_length, order=order, seed=5, **arguments)
        opened.append(feed)
        return feed

    yield start
    for feed in opened:
        feed.close()


def test_between_two_epochs_exactly_the_windows_of_the_next_one_come(
    open_feed: OpenFeed, path: Path
) -> None:
    """From the first to the last, each once, at the new length; the stream's samples go on."""
    before = open_feed(LONG)
    for epoch in range(2):
        for _ in before.epoch(epoch):
            pass

    feed = open_feed(SHORT)
    feed.load_state_dict(before.state_dict(), allow=("context_length",))

    assert before.position == (2 * WINDOWS[LONG], 2)
    assert feed.position == (2 * WINDOWS[LONG], 2)
    windows = range(2 * WINDOWS[SHORT], 3 * WINDOWS[SHORT])
    rows = received_rows(feed.epoch(feed.position.epoch))
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 5, SHORT, windows))
    assert sorted(rows[:, 0].tolist()) == list(range(0, WINDOWS[SHORT] * SHORT, SHORT))


def test_in_the_middle_of_a_shuffled_epoch_one_is_told_and_may_take_the_next_one(
    open_feed: OpenFeed, path: Path
) -> None:
    """A model must not see two fifths of an epoch twice without anybody's knowing."""
    state = open_feed(LONG, start_sample=40).state_dict()
    feed = open_feed(SHORT)

    with pytest.raises(StreamMismatch, match=r"39\.6 % of the rest") as caught:
        feed.load_state_dict(state, allow=("context_length",))

    assert feed.position.samples == 0
    assert "start_sample=203 instead of the state" in str(caught.value)
    rows = received_rows([next(open_feed(SHORT, start_sample=203))])
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 5, SHORT, [WINDOWS[SHORT]]))


def test_in_the_middle_of_a_shuffled_epoch_it_goes_on_where_that_is_allowed(
    open_feed: OpenFeed, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the same fraction, so that the epoch is as long as it would have been."""
    state = open_feed(LONG, start_sample=40).state_dict()
    feed = open_feed(SHORT)

    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        feed.load_state_dict(state, allow=("context_length", "mid_epoch"))

    assert feed.position == (40, 0)
    assert "39.6 % of the rest of that epoch was already seen" in caplog.text
    rows = received_rows([next(feed)])
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 5, SHORT, [40 * 203 // 101]))


def test_in_corpus_order_it_goes_on_with_the_same_part_of_the_corpus(
    open_feed: OpenFeed, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Token 640 follows: it is the first of window 80."""
    state = open_feed(LONG, "sequential", start_sample=101 + 40).state_dict()
    feed = open_feed(SHORT, "sequential")

    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        feed.load_state_dict(state, allow=("context_length",))

    assert feed.position == (101 + 40, 1)
    assert f"less than {SHORT} tokens repeat" in caplog.text
    assert next(feed)[0][0, 0] == 640


def test_windows_drawn_without_end_go_on_with_the_same_sample(open_feed: OpenFeed) -> None:
    """There is no epoch to be in the middle of."""
    state = open_feed(LONG, "random", start_sample=40).state_dict()
    feed = open_feed(SHORT, "random")

    feed.load_state_dict(state, allow=("context_length",))

    assert feed.position.samples == 40


def test_another_corpus_as_well_leaves_the_fraction_unknown_and_says_so(
    open_feed: OpenFeed, serve: Serve, write_tokens: WriteTokens
) -> None:
    """The number of its windows is not in the state."""
    other = serve("--data", write_tokens(np.arange(1000), "other.bin"))
    state = open_feed(LONG, start_sample=40).state_dict()

    with RemoteBatches(other.address, 1, SHORT, order="shuffled", seed=5) as feed:
        with pytest.raises(StreamMismatch, match="seen part of the epoch is unknown"):
            feed.load_state_dict(state, allow=("context_length", "fingerprint"))
        feed.load_state_dict(state, allow=("context_length", "fingerprint", "mid_epoch"))
        assert feed.position.samples == 40
        feed.load_state_dict(state | {"sample": 0}, allow=("context_length", "fingerprint"))
        assert feed.position.samples == 0


def test_a_length_that_no_file_has_is_refused_by_name(open_feed: OpenFeed) -> None:
    """There is no epoch to go on in."""
    state = open_feed(LONG, start_sample=40).state_dict()

    with pytest.raises(InvalidRequest, match="context_length: 5000 is not below"):
        open_feed(5000).load_state_dict(state, allow=("context_length",))


def test_a_server_that_goes_away_before_it_says_how_long_an_epoch_was_is_waited_for(
    open_feed: OpenFeed, serve: Serve, server: Server, path: Path
) -> None:
    """As for all that it is asked."""
    state = open_feed(LONG, start_sample=101).state_dict()
    feed = open_feed(SHORT)
    assert feed.token_count == TOKENS
    port = int(server.address.rpartition(":")[2])
    assert server.stop() == 0

    with ThreadPoolExecutor(1) as thread:
        loaded = thread.submit(feed.load_state_dict, state, allow=("context_length",))
        serve("--data", path, port=port)
        loaded.result()

    assert feed.position == (101, 1)
    rows = received_rows([next(feed)])
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 5, SHORT, [203]))


def test_a_server_that_has_another_corpus_by_then_is_not_believed(
    open_feed: OpenFeed, serve: Serve, server: Server, write_tokens: WriteTokens
) -> None:
    """Its epochs are of another length."""
    state = open_feed(LONG, start_sample=101).state_dict()
    feed = open_feed(SHORT)
    assert feed.token_count == TOKENS
    port = int(server.address.rpartition(":")[2])
    assert server.stop() == 0
    serve("--data", write_tokens(np.arange(2000), "other.bin"), port=port)

    with pytest.raises(StreamMismatch, match="another corpus"):
        feed.load_state_dict(state, allow=("context_length",))
