"""States of runs whose context length changes, in feeds of other arguments."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import Mixture
from tests.client.feed.imagined import Corpus, Row, deliver, feed_of, load, moved, rows_of, state_of
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.requested_changes import declared, log_lengths, resized, reweighted
from tokenfeed.errors import InvalidRequest, StreamMismatch

U = 1 << 19
CORPORA = {
    "web": Corpus((40 * U + 1, 5000), 1),
    "code": Corpus((50 * U + 1,), 2),
    "math": Corpus((17 * U + 70_000,), 3),
    "chat": Corpus((300_000,) * 60, 4),
}
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
    """Its windows are other ones."""
    shuffled = feed_of(CORPORA, 8, T, dataset="web")

    found = load(shuffled, state_of(changed_feed()), allow=("order",))

    assert "dropped asked=100 context_length=16384" in "".join(found.messages)
    assert {length for _, length in stages_of(found.stream)} == {T}
    assert deliver(found.stream)


def test_a_mixture_behind_a_run_keeps_the_change_that_this_has_ahead() -> None:
    """It begins at the first end of a block then; each source goes on with its next group."""
    options = BLOCKS | {"dataset": None, "mixture": {"web": 1, "code": 1}}
    mixture = feed_of(CORPORA, 8, T, **options)

    found = load(mixture, state_of(changed_feed()), allow=("mixture",)).stream

    assert stages_of(found) == [(0, T), (80, T), (100, LONGER)]
    # Web is at its sample 90, code at 10; their first groups have 14 and 13 blocks.
    bases = [share.base for share in found.stream.stages[-1].shares]
    assert bases == [14 * U // LONGER, 13 * U // LONGER]
    assert deliver(found, 2)
    assert stages_of(load(mixture, state_of(found)).stream) == stages_of(found)


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
    assert stages_of(found.stream)[-1] == (GROUP, LONGER)
    behind = moved(found.stream, GROUP).settled()

    assert deliver(load(mixture, state_of(behind), allow=allow).stream)


def test_declared_lengths_that_tokens_put_into_another_order_are_refused() -> None:
    """The batch sizes were checked in the order in which they were written."""
    lengths = {0: T, 10**9: 1 << 13, "5 tokens": LONGER}

    with pytest.raises(InvalidRequest, match="16384 is asked for at sample 1, behind one at 1000"):
        declared(feed_of(CORPORA, 8, lengths, **BLOCKS))  # type: ignore[arg-type]


# --- mixtures ---

MIXED = BLOCKS | {"dataset": None, "mixture": {"web": 3, "code": 1}}
WEIGHTS = st.fixed_dictionaries(
    {"web": st.integers(1, 4), "code": st.integers(0, 2), "math": st.integers(0, 2)}
)


def mixed(length: Any = T, mixture: Any = None, **options: Any) -> FeedStream:
    """A feed of a mixture, whose batches have 2^15 tokens."""
    first = length if isinstance(length, int) else length[0]
    given = MIXED | ({} if mixture is None else {"mixture": mixture}) | options
    return declared(feed_of(CORPORA, (1 << 15) // first, length, **given))


def step(feed: FeedStream, skipped: int = 0) -> tuple[FeedStream, list[Row]]:
    """Skip samples, and deliver a batch up to the end of its length."""
    feed = feed.settled()
    feed.cursor.seek(feed.cursor.sample + skipped, None)
    feed = feed.settled()
    first = feed.cursor.sample
    end = min(first + feed.request.position.stride, feed.length_end)
    size = feed.request.position.batch_size
    feed.cursor.current = feed.cursor.after(first, end, end, size)
    return feed, rows_of(feed.known(), range(first, end))


@settings(max_examples=40, deadline=None)
@given(
    WEIGHTS,
    st.lists(
        st.tuples(
            st.sampled_from(["read", "read", "length", "length", "weights", "restart", "longer"]),
            st.integers(0, 60),
            st.sampled_from([T, 1 << 13, LONGER, 1 << 15]),
            WEIGHTS,
        ),
        max_size=12,
    ),
)
def test_no_sequence_of_changes_and_restarts_of_a_mixture_alters_its_past(
    weights: dict[str, int], steps: list[tuple[str, int, int, dict[str, int]]]
) -> None:
    """Not one row, and not the identity of one. A restart by the arguments with which the run
    began, or with the length that is in force, continues with the same stages.
    """
    feed, past = mixed(mixture=weights), list[tuple[int, list[Row], bytes]]()
    for action, distance, length, others in steps:
        sample = feed.cursor.sample
        if action == "read":
            feed, rows = step(feed, 40 * distance)
            first = feed.cursor.sample - len(rows)
            past.append((first, rows, feed.known().identity(first)))
        elif action == "length":
            with suppress(InvalidRequest):
                feed, begin = resized(feed, length, sample + distance, None)
                assert resized(feed, length, sample + distance, None) == (feed, begin)
        elif action == "weights":
            with suppress(InvalidRequest):
                feed, _ = reweighted(feed, others, sample + distance, None)
        else:
            state = state_of(feed)
            own = feed.settled().context_length if action == "longer" else T
            again = load(mixed(own, weights), json.loads(json.dumps(state)))
            assert all("groups of the state" in message for message in again.messages)
            assert again.stream.known() == feed.known()
            assert state_of(again.stream) == state
            feed = again.stream
        known = feed.known()
        for first, rows, identity in past:
            assert rows_of(known, range(first, first + len(rows))) == rows
            assert known.identity(first) == identity


def test_a_change_of_weights_goes_on_behind_a_change_of_length() -> None:
    """Each lasts up to the next one of its kind, whichever was asked for first."""
    feed, begin = resized(mixed(), LONGER, 100, None)
    feed, other = reweighted(feed, {"web": 1, "code": 1}, 50, None)
    feed, _ = reweighted(feed, {"web": 1}, 201, None)

    # The blocks behind sample 52 have two samples.
    stages = [
        (stage.first_sample, stage.context_length, stage.weights) for stage in feed.stream.stages
    ]
    assert (begin, other) == (100, 52)
    assert stages == [
        (0, T, {0: 3, 1: 1}),
        (52, T, {0: 1, 1: 1}),
        (100, LONGER, {0: 1, 1: 1}),
        (202, LONGER, {0: 1}),
    ]


def test_a_change_that_would_begin_with_a_stage_of_the_file_comes_a_block_later() -> None:
    """Both are in force then; a source that the stage brings has begun by one block."""
    stages = [{"weights": {"web": 3, "code": 1}}, {"first_sample": 99, "weights": {"math": 2}}]

    feed = mixed({0: T, 98: LONGER}, Mixture(stages=stages))

    assert stages_of(feed) == [(0, T), (100, T), (102, LONGER)]
    with pytest.raises(InvalidRequest, match="98 leaves no block: the next stage begins at 100"):
        resized(mixed(T, Mixture(stages=stages)), LONGER, 98, None)
    # A stage that is asked for behind it begins at the new length, and loses nothing.
    stages[1]["first_sample"] = 101
    first = mixed({0: T, 98: LONGER}, Mixture(stages=stages)).stream.stages[-1]
    assert (first.first_sample, first.shares[2]) == (104, (2, 2, 0))


def test_a_mixture_with_allow_keeps_a_change_of_the_length_that_is_ahead() -> None:
    """Other weights say nothing about the length of rows."""
    feed, _ = step(mixed())
    feed, _ = resized(feed, LONGER, 100, None)
    feed, _ = reweighted(feed, {"web": 1, "code": 3}, 200, None)

    found = load(mixed(T, {"web": 1, "code": 1}), state_of(feed), allow=("mixture",))

    assert stages_of(found.stream) == [(0, T), (8, T), (100, LONGER)]
    assert [line.partition(" asked")[0] for line in found.messages[1:]] == [
        "change of the mixture is dropped"
    ]


def test_a_mixture_of_another_length_than_its_state_is_told_what_to_do() -> None:
    """A change in the run is exact; what a load could do is not."""
    feed, _ = step(mixed())

    with pytest.raises(StreamMismatch) as refusal:
        load(mixed(LONGER), state_of(feed), allow=("context_length", "mixture"))

    assert refusal.value.subject == "context_length"
    assert "pass context_length=4096, and call change_context_length(16384)" in str(refusal.value)


@pytest.mark.parametrize(
    ("mixture", "options", "message"),
    [
        (
            Mixture({"web": 1, "code": 1}, sources={"code": {"order": "shuffled"}}),
            {},
            "at_sample: 100 is within an epoch of 'code' of shuffled-1.* give it the order",
        ),
        (
            Mixture({"web": 1, "code": 1}, sources={"code": {"order": "packed"}}),
            {},
            "context_length: .*rows of packed-1 are other pieces then; give 'code' the order",
        ),
        (
            Mixture(
                stages=[
                    {"weights": {"web": 1, "code": 1}},
                    {"first_sample": 900, "weights": {"math": 1}},
                ],
                sources={"math": {"order": "packed"}},
            ),
            {},
            "context_length: changes, but rows of math are pieces of documents",
        ),
        (
            Mixture({"web": 1, "chat": 1}),
            {},
            "at_sample: 100 would leave out 4330 rows of 'chat', more than a group of 2048; pass "
            "4664, from which on fewer are left",
        ),
        (
            Mixture(
                stages=[
                    {"weights": {"web": 1, "code": 1}},
                    {"first_tokens": 10**9, "weights": {"web": 1}},
                ]
            ),
            {},
            "context_length: cannot change at sample 100: the mixture has first_tokens up to "
            "sample 244141, counted at 4096; write first_sample there",
        ),
        (None, {"num_batches": 9}, "num_batches: counts batches of one shape"),
    ],
)
def test_a_mixture_that_cannot_change_says_why_and_what_to_do(
    mixture: Any, options: dict[str, Any], message: str
) -> None:
    """Nothing changes then, and the run goes on."""
    feed = mixed(mixture=mixture, **options)
    before = state_of(feed)

    with pytest.raises(InvalidRequest, match=message):
        resized(feed, LONGER, 100, None)

    assert state_of(feed) == before


def test_the_sample_that_a_refusal_names_is_the_first_one_that_is_not_refused() -> None:
    """A source of short files alone has no groups: it changes near the end of its epoch."""
    feed = mixed(mixture={"web": 1, "chat": 1})

    with pytest.raises(InvalidRequest, match="would leave out 2049 rows of 'chat'"):
        resized(feed, LONGER, 4662, None)
    _, begin = resized(feed, LONGER, 4663, None)

    assert begin == 4664


def test_a_dataset_that_a_call_brings_before_a_change_of_the_length_needs_no_name_before() -> None:
    """Where it goes on at another length depends on its rows, which are asked for then."""
    feed, _ = resized(mixed(), LONGER, 100, None)
    named, _ = resized(mixed(mixture={"web": 3, "code": 1, "math": 0}), LONGER, 100, None)

    found, _ = reweighted(feed, {"web": 1, "math": 1}, 50, None)

    assert stages_of(found) == [(0, T), (52, T), (100, LONGER)]
    expected, _ = reweighted(named, {"web": 1, "math": 1}, 50, None)
    assert found.stream.stages == expected.stream.stages


def test_what_is_left_out_is_logged_once_and_again_where_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log of a run is its record; a change of weights before it moves what is left."""
    feed = mixed()
    found, _ = resized(feed, LONGER, 100, None)
    moved_feed, _ = reweighted(found, {"web": 1, "code": 1}, 50, None)

    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        log_lengths(feed, found)
        log_lengths(found, found)
        log_lengths(found, replace(moved_feed))

    left = [14 * U // T - 75, 13 * U // T - 25, 14 * U // T - 63, 13 * U // T - 37]
    assert [line.getMessage() for line in caplog.records if "left out" in line.message] == [
        f"rows are left out sample=100 source={name} rows={rows} tokens={rows * T}"
        for name, rows in zip(["web", "code", "web", "code"], left, strict=True)
    ]
    assert caplog.text.count("context length changes sample=100 context_length=16384") == 2


def test_a_change_stays_where_its_rows_cannot_be_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The stream is installed by then; a log line is no reason to end a run."""
    feed, _ = resized(mixed(), LONGER, 100, None)
    loaded = load(mixed(), state_of(feed)).stream
    loaded.datasets.close()

    log_lengths(mixed(), loaded)

    message = "rows that are left out are not counted sample=100 source=web: feed: is closed"
    assert message in caplog.text


def test_max_epochs_end_a_mixture_that_grows_where_the_source_is_at_its_last_epoch() -> None:
    """Epochs are places in the corpus: rows that were left out count."""
    limited = Mixture({"web": 1, "math": 1}, sources={"math": {"max_epochs": 1}})
    feed, begin = resized(mixed(mixture=limited), LONGER, 100, None)
    own = feed.stream.stages[-1].shares[1].base
    rows = CORPORA["math"].rows(LONGER)

    assert (begin, own) == (100, 9 * U // LONGER)
    assert feed.end_sample() == 100 + 2 * (rows - own)
    assert moved(feed, 100).settled().end_sample() == 100 + 2 * (rows - own)


def test_statistics_of_a_mixture_that_grows_ask_nobody() -> None:
    """Metrics are scraped when servers are away."""
    feed, _ = resized(mixed(), LONGER, 8, None)
    for _ in range(5):
        feed, _ = step(feed)
    loaded = load(mixed(), state_of(feed)).stream
    for each in (feed, loaded):
        each.datasets.close()
        *_, history = each.cursor.now
        found = each.source_stats(history, has_read=True)
        assert found["web"].tokens == 6 * (T + LONGER)
        assert found["web"].epochs == pytest.approx(found["web"].tokens / (40 * U), rel=1e-3)


# --- sources that pause, or that a mixture does not name any more ---


def log_of(caplog: pytest.LogCaptureFixture, before: FeedStream, now: FeedStream) -> set[str]:
    """What the log has of rows that are left out."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        log_lengths(before, now)
    return {line.getMessage() for line in caplog.records if "left out" in line.message}


def test_a_source_that_a_call_has_brought_and_that_pauses_again_is_counted_in_the_same_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It leaves out the rest of its group too; its rows are known, and the log is the record."""
    feed, _ = reweighted(mixed(), {"web": 1, "math": 1}, None, None)
    feed, _ = step(feed)
    feed, begin = reweighted(feed, {"web": 3, "code": 1}, None, None)
    feed, _ = step(feed, 40)

    found, at = resized(feed, LONGER, 100, None)

    own = (begin - 4) // 2
    rows = 9 * U // T - own  # of math, whose 17 blocks are in groups of 9 and 8
    expected = f"rows are left out sample={at} source=math rows={rows} tokens={rows * T}"
    assert expected in log_of(caplog, feed, found)
    assert resized(found, LONGER, 100, None) == (found, at)  # to ask again changes nothing
    for _ in range(20):  # behind the change its dataset is one of those that are open
        found, _ = step(found)
    assert found.context_length == LONGER
    assert state_of(found)


def test_rows_of_a_paused_source_that_a_restart_does_not_name_are_counted_while_it_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A number that is missing without a word is taken for 0."""
    feed, _ = reweighted(mixed(), {"web": 1, "math": 1}, None, None)
    feed, _ = step(feed)
    feed, _ = reweighted(feed, {"web": 3, "code": 1}, None, None)
    feed, at = resized(feed, LONGER, 100, None)
    feed, _ = step(feed)
    left = {name: CORPORA[name] for name in ("web", "code")}
    gone = load(feed_of(left, 8, T, **MIXED), state_of(feed)).stream

    named = load(mixed(mixture={"web": 3, "code": 1, "math": 0}), state_of(feed)).stream
    logged = log_of(caplog, mixed(), load(mixed(), state_of(feed)).stream)
    assert any("source=math rows=" in line for line in logged)
    assert logged == log_of(caplog, mixed(), named)
    message = f"rows that are left out are not counted sample={at} source=math: "
    assert any(line.startswith(message) for line in log_of(caplog, mixed(), gone))


def test_a_source_that_was_never_read_and_is_not_named_any_more_is_not_asked_for() -> None:
    """Its dataset may be gone, and the run does not need it."""
    stages = [{"weights": {"web": 1, "code": 1}}, {"first_sample": 900, "weights": {"math": 1}}]
    feed, _ = step(mixed(mixture=Mixture(stages=stages)))
    left = {"web": CORPORA["web"], "code": CORPORA["code"]}
    other = feed_of(left, 8, T, **MIXED | {"mixture": {"web": 1, "code": 3}})

    found = load(other, state_of(feed), allow=("mixture",)).stream

    assert [each.dataset for each in found.rest.sources] == ["web", "code"]
    assert [each[0] for each in state_of(found)["stream"][1]] == ["web", "code", "math"]
    assert step(load(other, state_of(found)).stream)[1]
    longer, _ = resized(found, LONGER, 100, None)
    assert stages_of(longer)[-1] == (100, LONGER)


def test_a_source_needs_rows_only_at_the_lengths_at_which_it_is_read() -> None:
    """One of short files ends before the longer rows, or comes too late for them."""
    stages = [
        {"weights": {"web": 1, "chat": 1}},
        {"first_sample": 5000, "weights": {"web": 1, "code": 1}},
    ]
    feed, begin = resized(mixed(mixture=Mixture(stages=stages)), U, 9000, 1)
    assert stages_of(feed)[-1] == (begin, U) == (9000, U)

    named = mixed(mixture={"web": 1, "code": 1, "chat": 0})
    feed, _ = resized(named, U, 100, 1)
    with pytest.raises(InvalidRequest, match="524288 is not below the 300000 tokens of the long"):
        reweighted(feed, {"web": 1, "chat": 1}, 200, None)


# --- where one change meets another ---


def test_other_weights_before_the_end_of_a_group_bring_a_change_of_the_length_forward() -> None:
    """With one source of weight 1 a change waits for the end of its group; a mixture does not."""
    feed, begin = resized(mixed(mixture={"web": 1, "code": 0}), LONGER, 100, None)
    assert begin == GROUP

    found, other = reweighted(feed, {"web": 1, "code": 1}, 900, None)

    assert other == 900
    assert stages_of(found) == [(0, T), (900, T), (902, LONGER)]
    assert resized(found, LONGER, 100, None) == (found, 902)
    again = load(mixed(mixture={"web": 1, "code": 0}), state_of(found))
    assert stages_of(again.stream) == stages_of(found)
    assert not any("dropped" in message for message in again.messages)


def test_a_stage_of_the_file_within_a_group_does_not_stop_a_change_that_waits_for_its_end() -> None:
    """The change begins behind the first block of the stage, declared or by a call."""
    stages = [{"weights": {"web": 1}}, {"first_sample": 900, "weights": {"web": 1, "code": 1}}]

    declared_feed = mixed({0: T, 100: LONGER}, Mixture(stages=stages))
    by_call, begin = resized(mixed(mixture=Mixture(stages=stages)), LONGER, 100, None)

    assert stages_of(declared_feed) == stages_of(by_call) == [(0, T), (900, T), (902, LONGER)]
    assert begin == 902


def test_a_length_that_other_weights_would_make_impossible_is_named_in_the_refusal() -> None:
    """It is not that a block is missing: the cure is that of the change of the length."""
    feed = mixed(mixture={"web": 9, "chat": 1, "code": 0})
    feed, _ = resized(feed, LONGER, 43_400, None)

    with pytest.raises(InvalidRequest) as refusal:
        reweighted(feed, {"web": 2, "chat": 1}, 100, None)

    assert refusal.value.subject == "weights"
    assert "cannot change at sample 100, since the context length could not" in str(refusal.value)
    assert "more than a group of 2048" in str(refusal.value)


def test_the_sample_that_a_refusal_names_is_refused_by_no_other_source_and_by_no_later_stage() -> (
    None
):
    """Several sources of short files, and weights that change before the first one is through."""
    corpora = CORPORA | {"talk": Corpus((300_000,) * 75, 5)}
    mixture: Any = {"web": 1, "chat": 1, "talk": 1}
    options = MIXED | {"mixture": mixture}
    feed = feed_of(corpora, 8, T, **options)

    with pytest.raises(InvalidRequest, match="would leave out 4346 rows of 'chat'") as refusal:
        resized(feed, LONGER, 100, None)

    named = int(refusal.value.problem.partition("pass ")[2].partition(",")[0])
    assert "from which on no source would" in refusal.value.problem
    assert resized(feed, LONGER, named, None)[1] == named
    stages = [{"weights": mixture}, {"first_sample": 3000, "weights": {"chat": 1}}]
    feed = feed_of(corpora, 8, T, **options | {"mixture": Mixture(stages=stages)})
    with pytest.raises(InvalidRequest, match="no later sample is right") as refusal:
        resized(feed, LONGER, 100, None)
    assert "pass" not in refusal.value.problem


def test_the_sample_that_is_named_may_lie_behind_a_stage_that_has_none() -> None:
    """A source that pauses there is read again later."""
    both = {"web": 1, "chat": 1}
    pause = [{"first_sample": 4000, "weights": {"web": 1}}, {"first_sample": 5000, "weights": both}]
    feed = mixed(mixture=Mixture(stages=[{"weights": both}, *pause]))

    with pytest.raises(InvalidRequest, match="pass 5664, from which on no source would"):
        resized(feed, LONGER, 100, None)

    assert resized(feed, LONGER, 5664, None)[1] == 5664


def test_where_none_of_many_samples_is_right_nobody_says_that_none_is() -> None:
    """There is one, of a sample of 23 million."""
    talk, chat = Corpus((300_000,) * 2000, 5), Corpus((300_000,) * 2311, 6)
    mixture = {"web": 1, "chat": 1, "talk": 1}
    feed = feed_of(CORPORA | {"talk": talk, "chat": chat}, 8, T, **MIXED | {"mixture": mixture})

    with pytest.raises(InvalidRequest, match="none of the next 64 samples that may be right is:"):
        resized(feed, LONGER, 100, None)


def test_a_state_without_a_batch_binds_no_mixture_to_its_context_length() -> None:
    """Else the log would name one length, and the feed would read another."""
    allow = ("mixture", "context_length")
    own = {"mixture": {"math": 3, "code": 1}}
    feed = feed_of(CORPORA, 8, T, **MIXED | own)

    found = load(feed, state_of(feed_of(CORPORA, 2, LONGER, **BLOCKS)), allow=allow).stream

    assert stages_of(found) == [(0, T)]
    assert found.request.position.batch_size == 8
    again = load(feed_of(CORPORA, 8, T, **MIXED | own), state_of(found)).stream
    assert again.known() == found.known()


def test_a_change_of_weights_keeps_what_it_has_hashed_for_the_next_state() -> None:
    """A state is taken between two steps, and maybe by a signal handler."""
    feed, _ = reweighted(mixed(), {"web": 3, "chat": 1}, None, None)

    assert {"known", "packed"} <= set(feed._memo)


# --- states at the sample where a length begins ---


def test_a_mixture_of_the_length_that_begins_at_the_saved_sample_goes_on_with_it() -> None:
    """Also with other weights: else a state of this feed would be of a length that it has not."""
    feed, begin = resized(mixed(), LONGER, 100, None)
    feed.cursor.seek(begin, None)
    state = state_of(feed)
    own = mixed(LONGER, {"web": 1, "code": 3})

    found = load(own, state, allow=("mixture",)).stream

    assert stages_of(found) == [(0, T), (begin, LONGER)]
    assert found.stream.stages[-1].weights == {0: 1, 1: 3}
    again = load(mixed(LONGER, {"web": 1, "code": 3}), state_of(found)).stream
    assert again.known() == found.known()


def test_declared_lengths_of_a_feed_that_begins_with_a_later_one_begin_behind_its_position() -> (
    None
):
    """They would replace the change by which the state has the feed's own length."""
    feed = mixed({0: T, 2: 1 << 13})
    feed.cursor.seek(100, None)  # nothing was delivered
    lengths = {0: 1 << 13, 2: LONGER}

    found = declared(load(mixed(lengths), state_of(feed)).stream)

    assert stages_of(found) == [(0, T), (4, 1 << 13), (100, LONGER)]
    again = declared(load(mixed(lengths), state_of(found)).stream)
    assert stages_of(again) == stages_of(found)


def test_a_change_among_rows_that_were_skipped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What it leaves out is left out all the same."""
    feed, _ = step(mixed())
    feed.cursor.seek(200, None)

    found = declared(load(mixed({0: T, 100: LONGER}), state_of(feed)).stream)

    assert stages_of(found)[-1] == (100, LONGER)
    assert len(log_of(caplog, feed, found)) == 2


@pytest.mark.parametrize("options", [BLOCKS, MIXED])
def test_a_feed_of_a_later_length_goes_on_behind_the_change_that_it_declares(options: Any) -> None:
    """A script that begins with the length in force is restarted with the next one in force."""
    lengths: Any = {0: 1 << 13, 2000: LONGER}

    def own() -> FeedStream:
        return feed_of(CORPORA, 4, lengths, **options)

    feed, begin = resized(feed_of(CORPORA, 8, T, **options), 1 << 13, 100, None)
    feed.cursor.seek(begin, None)
    feed, _ = step(declared(load(own(), state_of(feed)).stream))
    feed, _ = step(feed, feed.stream.stages[-1].first_sample)

    again = declared(load(own(), state_of(feed)).stream)

    assert [length for _, length in stages_of(again)] == [T, 1 << 13, LONGER]
    assert again.stream == feed.stream
    assert again.settled().context_length == LONGER


def test_declared_lengths_that_took_each_other_back_are_asked_for_again_by_other_weights() -> None:
    """A restart asks for them, and has to read the same rows as the run that went on."""
    lengths = {0: T, 300: LONGER, 400: T}  # both would begin at the end of the group
    mixture = {"web": 1, "code": 0}
    feed, _ = step(mixed(lengths, mixture))
    assert stages_of(feed) == [(0, T)]

    feed, begin = reweighted(feed, {"web": 1, "code": 1}, 100, None)

    assert stages_of(feed) == [(0, T), (begin, T), (300, LONGER), (400, T)]
    assert stages_of(declared(load(mixed(lengths, mixture), state_of(feed)).stream)) == stages_of(
        feed
    )


def test_a_mixture_behind_a_dataset_is_restarted_in_a_stage_of_one_source() -> None:
    """Its state looks like that of a dataset, and needs no permission any more."""
    feed = feed_of(CORPORA, 8, T, **BLOCKS)
    deliver(feed, 10)
    stages = [{"weights": {"web": 3, "code": 3}}, {"first_sample": 5, "weights": {"code": 1}}]

    found = load(mixed(T, Mixture(stages=stages)), state_of(feed), allow=("mixture",)).stream
    again = load(mixed(T, Mixture(stages=stages)), state_of(found)).stream

    assert again.known() == found.known()
    with pytest.raises(StreamMismatch, match="the state is of one dataset; pass dataset="):
        load(mixed(T, Mixture(stages=stages)), state_of(feed))


def test_a_source_that_was_not_read_may_get_another_order_before_a_change_of_the_length() -> None:
    """Where it goes on at that length is another sample then, or its tokens come twice."""
    mixture = {"web": 3, "code": 1}
    endless = Mixture(mixture, sources={"code": {"order": "random"}})
    feed, _ = resized(mixed(mixture=endless), LONGER, 100, None)
    fresh, _ = resized(mixed(mixture=mixture), LONGER, 100, None)

    found = load(mixed(mixture=mixture), state_of(feed)).stream

    assert found.stream.stages[-1].shares == fresh.stream.stages[-1].shares
    assert found.stream.stages[-1].shares != feed.stream.stages[-1].shares


# --- what was read and is not named any more, and stages that a restart brings ---


def test_a_source_that_was_read_and_is_not_named_any_more_does_not_stop_a_change() -> None:
    """Where it would go on depends on its rows: its dataset is asked for, while it is there."""
    feed, _ = step(mixed(mixture={"web": 1, "math": 1}))
    other = {"web": 3, "code": 1}
    left = {name: CORPORA[name] for name in other}
    state = state_of(feed)
    named = load(mixed(mixture={**other, "math": 0}), state, allow=("mixture",)).stream
    gone = load(feed_of(left, 8, T, **MIXED), state, allow=("mixture",)).stream

    found, begin = resized(
        load(mixed(mixture=other), state, allow=("mixture",)).stream, LONGER, 100, None
    )

    expected, _ = resized(named, LONGER, 100, None)
    base = {name: share.base for name, share in shares_of(found).items()}
    assert (begin, base) == (100, {"web": 448, "math": 288, "code": 416})
    assert {name: share.base for name, share in shares_of(expected).items()} == base
    with pytest.raises(InvalidRequest, match=r"rows of 'math' are not known .*; serve it until"):
        resized(gone, LONGER, 100, None)
    assert step(gone)[1]  # and the run goes on


def shares_of(feed: FeedStream) -> dict[str, Any]:
    """The shares of the last stage, by the names of their datasets."""
    stream = feed.stream
    return {stream.sources[share.source].dataset: share for share in stream.stages[-1].shares}


@pytest.mark.parametrize("at_sample", [900, GROUP])
def test_a_stage_that_the_file_gains_within_a_group_keeps_the_change_that_waits_for_its_end(
    at_sample: int,
) -> None:
    """It begins behind the first block of that stage, as in a run that had the stage before."""
    stages = [
        {"weights": {"web": 1}},
        {"first_sample": at_sample, "weights": {"web": 1, "code": 1}},
    ]
    feed, _ = resized(mixed(mixture={"web": 1, "code": 0}), LONGER, 100, None)
    feed, _ = step(feed)

    found = load(mixed(mixture=Mixture(stages=stages)), state_of(feed))

    whole = mixed({0: T, 100: LONGER}, Mixture(stages=stages))
    assert stages_of(found.stream) == stages_of(whole)
    assert stages_of(whole)[1:] == [(at_sample, T), (at_sample + 2, LONGER)]
    assert found.stream.stream.stages == whole.stream.stages
    assert not found.messages
    assert not load(mixed(mixture=Mixture(stages=stages)), state_of(found.stream)).messages


@pytest.mark.parametrize("allow", [(), ("mixture",)])
def test_a_change_of_the_length_that_another_mixture_makes_impossible_is_named_in_a_refusal(
    allow: tuple[str, ...],
) -> None:
    """A run that goes on at the old length would be noticed by its loss alone."""
    feed, _ = resized(mixed(mixture={"web": 1, "code": 1}), LONGER, 100, None)
    feed, _ = step(feed)
    other: Any = {"web": 1, "chat": 1}
    stages = [{"weights": {"web": 1, "code": 1}}, {"first_sample": 50, "weights": other}]
    mixture = other if allow else Mixture(stages=stages)

    with pytest.raises(StreamMismatch) as refusal:
        load(mixed(mixture=mixture), state_of(feed), allow=allow)

    assert "changes it to 16384 at sample 100, which this mixture does not allow" in str(
        refusal.value
    )
    # The cure works.
    again = load(mixed(mixture={"web": 1, "code": 1}), state_of(feed)).stream
    assert "change_context_length(4096, at_sample=100)" in str(refusal.value)
    back, _ = resized(again, T, 100, None)
    found = load(mixed(mixture=mixture), state_of(back), allow=allow).stream
    assert {length for _, length in stages_of(found)} == {T}


def test_a_call_for_a_past_sample_is_refused_unless_it_is_the_same_call_again() -> None:
    """All ranks repeat their calls after a resume; another sample is a mistake, and says so."""
    feed, _ = resized(mixed(), LONGER, 100, None)
    feed, _ = reweighted(feed, {"web": 1, "code": 1}, 200, None)
    feed.cursor.seek(300, None)
    feed, _ = step(feed)
    sample = feed.cursor.sample

    assert resized(feed, LONGER, 100, None) == (feed, 100)
    assert reweighted(feed, {"web": 1, "code": 1}, 200, None) == (feed, 200)
    assert resized(feed, T, 0, None) == (feed, 0)
    for length, at_sample in [(LONGER, 150), (LONGER, 200), (T, 50), (T, 97), (T, 100), (T, 150)]:
        with pytest.raises(InvalidRequest, match=f"{at_sample} is before {sample}, the first sam"):
            resized(feed, length, at_sample, None)
    for weights, at_sample in [({"web": 3, "code": 1}, 100), ({"web": 1, "code": 1}, 201)]:
        with pytest.raises(InvalidRequest, match=f"{at_sample} is before {sample}, the first sam"):
            reweighted(feed, weights, at_sample, None)


def test_the_sample_that_a_refusal_of_a_past_one_names_is_the_first_that_may_change() -> None:
    """Not the one from which on a source would leave out less: that is past too."""
    feed = mixed(mixture={"web": 1, "chat": 1})
    paused, _ = reweighted(feed, {"web": 1}, 50, None)

    for each in (feed, paused):
        each.cursor.seek(4800, None)
        with pytest.raises(InvalidRequest, match="at_sample: 100 is before 4800, the first samp"):
            resized(each, LONGER, 100, None)


@pytest.mark.parametrize("lengths", [{0: T, 98: LONGER}, {0: T, 98: LONGER, 150: LONGER}])
def test_a_declared_length_that_the_run_has_had_is_not_asked_for_again(lengths: Any) -> None:
    """Also if a stage of the file has moved it: a restart would go back to shorter rows."""
    stages = [{"weights": {"web": 3, "code": 1}}, {"first_sample": 99, "weights": {"math": 2}}]
    feed = mixed(lengths | {300: 1 << 15}, Mixture(stages=stages))
    feed.cursor.seek(500, None)
    feed, _ = step(feed)
    assert stages_of(feed) == [(0, T), (100, T), (102, LONGER), (300, 1 << 15)]

    again = declared(load(mixed(lengths, Mixture(stages=stages)), state_of(feed)).stream)

    assert stages_of(again) == stages_of(feed)


def identities(feed: FeedStream, *samples: int) -> list[bytes]:
    return [feed.known().identity(sample) for sample in samples]


def test_identities_behind_a_source_that_was_not_read_and_is_another_one_now_are_new() -> None:
    """Else two feeds of the same rows have different streams, and refuse each other's states."""
    mixture, other = {"web": 3, "code": 0}, {"code": {"order": "random"}}

    def run(feed: FeedStream) -> FeedStream:
        feed, _ = reweighted(step(feed)[0], {"web": 1, "code": 1}, 60, None)
        return reweighted(feed, {"web": 1}, 90, None)[0]

    state = state_of(run(mixed(mixture=mixture)))
    fresh = run(mixed(mixture=Mixture(mixture, sources=other)))

    found = load(mixed(mixture=Mixture(mixture, sources=other)), state).stream

    assert found.known() == fresh.known()
    assert identities(found, 0, 60, 90) == identities(fresh, 0, 60, 90)
    assert state_of(found) == state_of(fresh)


def test_identities_behind_a_stage_that_the_file_has_otherwise_are_new() -> None:
    """A change behind it may begin with the same samples as before, and follows other rows."""

    def of_file(weight: int) -> FeedStream:
        second = {"first_sample": 50, "weights": {"web": weight, "code": weight}}
        return mixed(mixture=Mixture(stages=[{"weights": {"web": 1, "code": 0}}, second]))

    feed, _ = reweighted(of_file(1), {"web": 1}, 100, None)
    fresh, _ = reweighted(of_file(2), {"web": 1}, 102, None)
    feed, _ = reweighted(of_file(1), {"web": 1}, 102, None)

    found = load(of_file(2), state_of(feed)).stream

    assert identities(found, 0, 50, 102) == identities(fresh, 0, 50, 102)
    assert state_of(found) == state_of(fresh)
