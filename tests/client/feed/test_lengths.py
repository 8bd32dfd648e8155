"""States of runs whose context length changes, in feeds of other arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.feed.imagined import Corpus, deliver, feed_of, load, moved, state_of
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.stream_changes import declared, resized
from tokenfeed.errors import InvalidRequest, StreamMismatch

U = 1 << 19
CORPORA = {"web": Corpus((40 * U + 1, 5000), 1), "code": Corpus((50 * U + 1,), 2)}
"""Of web 40 whole blocks, in groups of 14, 13 and 13."""
T, LONGER = 1 << 12, 1 << 14
BLOCKS: dict[str, Any] = {"dataset": "web", "order": "blocks", "group_tokens": 16 * U}
GROUP = 14 * U // T
"""Samples of the first group."""


def changed_feed(at_sample: int = 100, length: int = LONGER) -> FeedStream:
    """A feed that has delivered ten batches and then was asked for another context length."""
    feed = feed_of(CORPORA, 8, T, **BLOCKS)
    deliver(feed, 10)
    found, _ = resized(feed, length, at_sample, None)
    return found


def stages_of(feed: FeedStream) -> list[tuple[int, int]]:
    return [(stage.first_sample, stage.context_length) for stage in feed.stream.stages]


def test_a_state_goes_on_with_the_change_that_it_has_ahead() -> None:
    """A script that is started again does not know whether it had asked for it."""
    state = json.loads(json.dumps(state_of(changed_feed())))

    found = load(feed_of(CORPORA, 8, T, **BLOCKS), state)

    assert stages_of(found.stream) == [(0, T), (GROUP, LONGER)]
    assert state_of(found.stream) == state
    assert not found.messages
    assert moved(found.stream, GROUP).settled().request.position.batch_size == 2


def test_a_feed_of_the_new_length_changes_at_the_end_of_the_present_group_on_request() -> None:
    """It has that length only once it is in force, and says what becomes of the change ahead."""
    state = state_of(changed_feed(GROUP + 1))
    feed = feed_of(CORPORA, 2, LONGER, **BLOCKS)

    with pytest.raises(StreamMismatch, match="context_length: the state was saved with 4096"):
        load(feed, state)
    found = load(feed, state, allow=("context_length",))

    assert stages_of(found.stream) == [(0, T), (GROUP, LONGER)]
    assert "change of the context length is dropped asked=1793" in "".join(found.messages)
    assert found.stream.cursor.sample == 80
    assert (found.stream.context_length, found.stream.request.position.batch_size) == (T, 8)


def test_another_stream_drops_a_change_that_is_ahead_and_says_so() -> None:
    """Its windows and groups are other ones; a mixture has one context length."""
    state = state_of(changed_feed())
    shuffled = feed_of(CORPORA, 8, T, dataset="web")
    mixture = feed_of(CORPORA, 8, T, mixture={"web": 1, "code": 1}, **(BLOCKS | {"dataset": None}))

    other = load(shuffled, state, allow=("order",))
    mixed = load(mixture, state, allow=("mixture",))

    for found in (other, mixed):
        assert "dropped asked=100 context_length=16384" in "".join(found.messages)
        assert {length for _, length in stages_of(found.stream)} == {T}
        assert deliver(found.stream)
    assert deliver(mixed.stream, 3)


def test_a_change_that_leaves_no_group_to_another_one_is_refused() -> None:
    """Both would begin at the same sample, or the later one before the earlier one."""
    feed = changed_feed(GROUP + 1, 1 << 13)

    again, begin = resized(feed, LONGER, GROUP + 2, None)

    assert begin == GROUP + 13 * U // T
    assert stages_of(again) == [(0, T), (begin, LONGER)]  # in its place
    with pytest.raises(InvalidRequest, match="at_sample: 79 is before 80, the first sample"):
        resized(feed, LONGER, 79, None)
    earlier, begin = resized(feed, 1 << 14, 90, None)
    assert begin == GROUP
    # The one behind it is asked for at its sample still, which is counted in longer rows now.
    assert stages_of(earlier) == [(0, T), (GROUP, 1 << 14), (GROUP + 13 * 32, 1 << 13)]


@pytest.mark.parametrize("at_sample", [100, GROUP, None])
def test_the_length_of_a_run_may_be_asked_for_back(at_sample: int | None) -> None:
    """A change that has not begun is taken back as it was made."""
    feed = changed_feed()

    back, begin = resized(feed, T, at_sample, None)

    assert (stages_of(back), begin) == ([(0, T)], 0)
    assert resized(back, T, at_sample, None) == (back, 0)


def test_statistics_of_a_change_that_a_state_has_ahead_ask_nobody() -> None:
    """Metrics are scraped when servers are away, and when the feed is closed."""
    state = state_of(changed_feed())
    found = load(feed_of(CORPORA, 8, T, **BLOCKS), state).stream
    found.datasets.close()

    assert moved(found, GROUP).position_of(GROUP) == (GROUP, 0)


def test_a_mixture_behind_a_grown_run_counts_epochs_in_tokens() -> None:
    """A row is another part of an epoch at each length."""
    feed = changed_feed()
    for _ in range(GROUP // 8 - 10):
        deliver(feed)
    feed = moved(feed, GROUP).settled()
    deliver(feed, 13 * U // LONGER // 2)
    state = state_of(feed)
    options = BLOCKS | {"dataset": None, "mixture": {"web": 1, "code": 1}}
    mixture = load(feed_of(CORPORA, 2, LONGER, **options), state, allow=("mixture",)).stream
    *_, history = mixture.cursor.now

    web = mixture.source_stats(history, has_read=True)["web"]

    assert web.tokens == 27 * U
    assert web.epochs == pytest.approx(27 / 40, rel=0.01)  # but for the rest of a file


def test_a_mixture_of_another_length_says_how_to_go_on_with_a_source() -> None:
    """Only once the length is in force there is a sample at which both could have it."""
    feed = feed_of(CORPORA, 8, T, **BLOCKS)
    deliver(feed, 10)
    options = BLOCKS | {"dataset": None, "mixture": {"web": 1, "code": 1}}
    mixture, allow = feed_of(CORPORA, 2, LONGER, **options), ("mixture", "context_length")

    with pytest.raises(StreamMismatch, match="read up to the sample from which on it has that"):
        load(mixture, state_of(feed), allow=allow)
    longer = feed_of(CORPORA, 2, LONGER, **BLOCKS)
    found = load(longer, state_of(feed), allow=("context_length",))
    (said,) = [line for line in found.messages if "changes sample" in line]
    assert f"sample={GROUP} " in said
    behind = moved(found.stream, GROUP).settled()

    assert deliver(load(mixture, state_of(behind), allow=allow).stream)


def test_declared_lengths_that_tokens_put_into_another_order_are_refused() -> None:
    """The batch sizes were checked in the order in which they were written."""
    lengths = {0: T, 10**9: 1 << 13, "5 tokens": LONGER}

    with pytest.raises(InvalidRequest, match="16384 is asked for at sample 1, behind one at 1000"):
        declared(feed_of(CORPORA, 8, lengths, **BLOCKS))  # type: ignore[arg-type]
