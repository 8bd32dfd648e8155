"""What a feed has read stays what it was, whatever is changed, saved and loaded after it."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from client import Mixture
from tests.client.feed.imagined import (
    Corpora,
    Corpus,
    Row,
    changed,
    deliver,
    feed_of,
    load,
    moved,
    rows_of,
    state_of,
)
from tokenfeed.client.feed import requested_changes
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.named import named_runs
from tokenfeed.client.feed.requested_changes import reweighted
from tokenfeed.errors import InvalidRequest, SamplesExhausted, StreamMismatch
from tokenfeed.stream.stage import CHANGED, RESUMED, Redaction

NAMES = ("web", "code", "math", "news")
CORPORA = {name: Corpus((3000,), number) for number, name in enumerate(NAMES)}

Weights = dict[str, int]
weights = st.one_of(
    st.sampled_from([{"web": 7, "code": 3}, {"code": 1, "math": 2}, {"web": 1}]),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=1),
)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Stages far enough apart that each one has a block."""
    begins = sorted(draw(st.sets(st.integers(1, 12), max_size=3)))
    stages: list[dict[str, Any]] = [{"weights": draw(weights)}]
    stages += [{"first_sample": 60 * begin, "weights": draw(weights)} for begin in begins]
    return Mixture(stages=stages)


def feed_with(mixture: Mixture | Mapping[str, float], **options: Any) -> FeedStream:
    return feed_of(CORPORA, mixture=mixture, **options)


def restarted(feed: FeedStream, own: FeedStream, allow: Collection[str] = ()) -> FeedStream:
    """What a feed goes on with that loads the state of another one."""
    return load(own, json.loads(json.dumps(state_of(feed))), allow=allow).stream


def kind_of(value: object) -> str:
    return type(value).__name__


def stages_of(feed: FeedStream) -> list[tuple[int, Weights]]:
    """Where each stage begins, and its weights."""
    stream = feed.stream
    return [
        (
            stage.first_sample,
            {stream.sources[number].dataset: n for number, n in stage.weights.items()},
        )
        for stage in stream.stages
    ]


# --- mixtures ---


@settings(max_examples=50)
@given(
    mixtures(),
    st.lists(
        st.tuples(
            st.sampled_from(["read", "change", "restart", "other", "older"]),
            st.integers(1, 90),
            weights,
            mixtures(),
            st.booleans(),
        ),
        max_size=12,
    ),
)
def test_no_sequence_of_changes_and_restarts_alters_the_past(
    mixture: Mixture, steps: list[tuple[str, int, Weights, Mixture, bool]]
) -> None:
    """Not one row, and not the identity of one. A restart by the same definition continues with
    the same stages, with or without the permission; another definition continues with its own, or
    is refused. No source repeats a sample of its own.
    """
    feed, past, identities = feed_with(mixture), list[Row](), list[bytes]()
    older: list[tuple[Mixture, dict[str, Any], list[Row], list[bytes]]] = []
    for action, distance, changed_weights, other, allow in steps:
        sample = feed.cursor.sample
        if action == "read":
            older.append((mixture, state_of(feed), [*past], [*identities]))
            past += deliver(feed, distance)
            known = feed.known()
            identities += [known.identity(each) for each in range(sample, feed.cursor.sample)]
        elif action == "change":
            at = None if allow else sample + distance - 1
            with suppress(InvalidRequest):
                feed, begin = reweighted(feed, changed_weights, at, None)
                assert reweighted(feed, changed_weights, at, None) == (feed, begin)
                assert _in_force(feed, max(begin, at or sample)) == changed_weights
        elif action == "restart":
            again = load(feed_with(mixture), state_of(feed), allow=("mixture",) * allow)
            assert not again.messages
            assert again.stream.known() == feed.known()
            feed = again.stream
        elif action == "older" and older:
            mixture, state, *before = older[distance % len(older)]
            past, identities = map(list, before)
            feed = load(feed_with(mixture), state).stream
        elif action == "other":
            try:
                feed = restarted(feed, feed_with(other), ("mixture",) * allow)
            except StreamMismatch:
                assert not allow
                continue
            except InvalidRequest:
                continue
            mixture = other
            if allow and not any(stage.origin & CHANGED for stage in feed.stream.stages):
                end = feed.stream.stages[-1].first_sample
                assert _in_force(feed, end) == other.stages[-1].weights
        known, sample = feed.known(), feed.cursor.sample
        assert rows_of(known, range(sample)) == past
        assert [known.identity(each) for each in range(sample)] == identities
    own_samples = [(row.fingerprint, row.own_sample) for row in past]
    assert len(set(own_samples)) == len(own_samples)


def _in_force(feed: FeedStream, sample: int) -> Weights:
    return next(each for begin, each in reversed(stages_of(feed)) if begin <= sample)


def test_a_change_may_be_written_into_the_file_afterwards() -> None:
    """The state has the change, and the file has it too: it is one."""
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 20)
    feed, begin = reweighted(feed, {"math": 2}, 37, None)
    assert begin == 40
    deliver(feed, 80)
    for first_sample in (37, 40):
        stages = [
            {"weights": {"web": 7, "code": 3}},
            {"first_sample": first_sample, "weights": {"math": 2}},
        ]
        own = feed_with(Mixture(stages=stages))

        found = load(own, state_of(feed))

        assert stages_of(found.stream) == [(0, {"web": 7, "code": 3}), (40, {"math": 2})]
        assert not found.messages
        assert reweighted(own, {"math": 2}, first_sample, None) == (own, 40)


@pytest.mark.parametrize("sample", [20, 24])
def test_a_state_is_taken_by_a_feed_of_the_weights_that_begin_where_it_was_saved(
    sample: int,
) -> None:
    """The second phase of a run has its own file; and so may the first one go on."""
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 20)
    feed = changed(feed, {"math": 2}, 20)
    deliver(feed, sample - 20)
    stages = [(0, {"web": 7, "code": 3}), (20, {"math": 2})]

    found = load(own := feed_with({"math": 2}), state_of(feed))

    assert stages_of(found.stream) == stages
    assert not found.messages
    deliver(found.stream, 8)
    assert stages_of(load(own, state_of(found.stream)).stream) == stages
    if sample == 20:
        assert stages_of(load(feed_with({"web": 7, "code": 3}), state_of(feed)).stream) == stages


def test_an_earlier_change_that_begins_at_the_same_sample_is_replaced() -> None:
    """Also by what was in force before: then there is no change."""
    feed = feed_with({"web": 7, "code": 3})
    pending = changed(feed, {"code": 1, "math": 2}, 1)
    deliver(pending, 8)

    replaced, begin = reweighted(pending, {"web": 1}, 8, None)
    withdrawn, since = reweighted(pending, {"web": 7, "code": 3}, 8, None)

    first = (0, {"web": 7, "code": 3})
    assert (begin, stages_of(replaced)) == (10, [first, (10, {"web": 1})])
    assert (since, stages_of(withdrawn)) == (0, [first])
    assert reweighted(feed, {"web": 7, "code": 3}, 55, None) == (feed, 0)


def test_a_change_before_the_current_position_is_refused() -> None:
    """Those rows were delivered."""
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 45)

    with pytest.raises(InvalidRequest, match="at_sample: 30 is before 45, the first sample"):
        reweighted(feed, {"web": 1}, 30, None)


def test_of_a_folded_state_the_definition_is_compared_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stages are gone, and what is kept are changes, which any definition could have."""
    monkeypatch.setattr("tokenfeed.client.feed.state.STAGES_MAX", 5)
    feed = feed_with({"web": 7, "code": 3})
    for n in range(20):
        feed = changed(feed, {"math": 1 + n % 2, "web": 1}, feed.cursor.sample)
        deliver(feed, 2)
    state = state_of(feed)
    assert state["stream"][2] > 0

    assert load(feed_with({"web": 7, "code": 3}), state).stream.known() == feed.known()
    other = feed_with({"news": 3})
    with pytest.raises(StreamMismatch, match=r"with the weights web 7, code 3, but .* has news 3"):
        load(other, state)
    found = load(other, state, allow=("mixture",)).stream
    assert {row.fingerprint for row in deliver(found, 10)[8:]} == {CORPORA["news"].fingerprint}


def test_a_folded_state_may_begin_with_the_stage_that_is_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is kept of what was read then, and yet a definition is compared."""
    monkeypatch.setattr("tokenfeed.client.feed.state.STAGES_MAX", 2)
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 20)
    feed = changed(feed, {"math": 1}, 20)
    feed = changed(feed, {"math": 1, "web": 1}, 50)
    state = state_of(feed)
    assert [stage[0] for stage in state["stream"][4]] == [20, 50]

    assert load(feed_with({"web": 7, "code": 3}), state).stream.known() == feed.known()
    with pytest.raises(StreamMismatch, match=r"with the weights web 7, code 3, but .* has news 3"):
        load(feed_with({"news": 3}), state)
    found = load(feed_with({"news": 3}), state, allow=("mixture",)).stream
    assert {row.fingerprint for row in deliver(found, 30)[8:]} >= {CORPORA["news"].fingerprint}


def test_changes_that_are_dropped_are_named() -> None:
    """By a definition that is appended, or leaves them no block."""
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 100)
    feed = changed(feed, {"math": 2}, 500)
    message = "change of the mixture is dropped asked=500 weights=math 2"
    full = [{"weights": {"web": 7, "code": 3}}, {"first_sample": 500, "weights": {"web": 1}}]

    appended = load(feed_with({"web": 1, "code": 1}), state_of(feed), allow=("mixture",))
    in_the_way = load(feed_with(Mixture(stages=full)), state_of(feed))

    assert appended.messages == (
        "resumed with other weights sample=100 saved=web 7, code 3 now=web 1, code 1",
        message,
    )
    assert in_the_way.messages == (message,)
    assert stages_of(in_the_way.stream) == [(0, {"web": 7, "code": 3}), (500, {"web": 1})]


def test_other_weights_are_refused_with_both_and_the_cure() -> None:
    """A typing error in a file must not become another run."""
    feed = feed_with({"web": 7, "code": 3})
    deliver(feed, 45)

    with pytest.raises(
        StreamMismatch, match="weights web 7, code 3, but here web 7, code 2; allow"
    ):
        restarted(feed, feed_with({"web": 7, "code": 2}))
    found = restarted(feed, feed_with({"web": 7, "code": 2}), ("mixture",))

    assert stages_of(found) == [(0, {"web": 7, "code": 3}), (50, {"web": 7, "code": 2})]
    # Its own states are known by themselves.
    deliver(found, 9)
    assert restarted(found, feed_with({"web": 7, "code": 2})).stream == found.stream


def test_renamed_datasets_of_one_corpus_are_told_by_their_numbers() -> None:
    """And no two of them become one."""
    corpora = dict.fromkeys("abxy", CORPORA["web"])
    feed = feed_of(corpora, mixture={"a": 4, "b": 3})
    deliver(feed, 70)

    found = restarted(feed, feed_of(corpora, mixture={"x": 4, "y": 3}))

    assert [source.dataset for source in found.stream.sources] == ["x", "y"]
    assert found.stream.stages == feed.known().stages
    with pytest.raises(StreamMismatch, match="the weights x 4, b 3, but here x 3"):
        restarted(feed, feed_of(corpora, mixture={"x": 3}))


def test_what_leaves_an_appended_definition_no_room_is_said() -> None:
    """The stages of a file are too close together for the blocks of the state."""
    feed = feed_with({"web": 60, "code": 40})
    deliver(feed, 150)
    close = [
        {"weights": {"web": 60}},
        {"first_sample": 270, "weights": {"code": 1}},
        {"first_sample": 305, "weights": {"web": 1}},
    ]

    with pytest.raises(InvalidRequest, match="mixture: cannot begin at sample 200, since a later"):
        restarted(feed, feed_with(Mixture(stages=close)), ("mixture",))


@pytest.mark.parametrize(
    ("options", "corpora", "problem"),
    [
        ({"seed": 4}, {}, "^seed: the state was saved with 3, but this mixture has 4; pass seed=3"),
        ({"context_length": 9}, {}, "^context_length: the state was saved with 8, but .* 9"),
        ({"order": "sequential"}, {}, r"^mixture.web: .* order shuffled-1, .* sequential-1"),
        ({}, {"code": Corpus((3000,), 99)}, r"^mixture.code: .* fingerprint 0101.* has 6363"),
    ],
)
def test_a_mixture_of_other_parts_is_refused_by_their_name(
    options: dict[str, Any], corpora: Corpora, problem: str
) -> None:
    """A mixture has a seed, a length and sources; weights are compared by their stages."""
    feed = feed_with({"web": 7, "code": 3}, seed=3)
    deliver(feed, 45)
    own = feed_of(CORPORA | corpora, mixture={"web": 7, "code": 3}, **({"seed": 3} | options))

    with pytest.raises(StreamMismatch, match=problem):
        restarted(feed, own, ("mixture",))


def test_a_source_that_was_not_read_yet_may_be_another_corpus() -> None:
    """It was extended before its stage begins."""
    stages = [{"weights": {"web": 1}}, {"first_sample": 90, "weights": {"code": 1}}]
    feed = feed_with(Mixture(stages=stages))
    deliver(feed, 45)
    grown = feed_of(CORPORA | {"code": Corpus((9000,), 77)}, mixture=Mixture(stages=stages))

    found = restarted(feed, grown)

    deliver(found, 50)
    assert {row.fingerprint for row in rows_of(found.known(), range(90, 95))} == {bytes([77]) * 32}
    late = restarted(found, feed_of(grown.datasets.corpora, mixture=Mixture(stages=stages)))
    assert late.known() == found.known()


def test_the_mixture_of_one_dataset_and_the_dataset_load_each_other_s_states() -> None:
    """They are one stream, with the same rows under the same identity."""
    mixture = {"mixture": {"web": 1}}
    for one, other in ((mixture, {"dataset": "web"}), ({"dataset": "web"}, mixture)):
        feed = feed_of(CORPORA, **one)
        past = deliver(feed, 30)

        found = load(feed_of(CORPORA, **other), state_of(feed))

        assert not found.messages
        assert found.stream.known() == feed.known()
        assert rows_of(found.stream.known(), range(30)) == past
        again = load(feed_of(CORPORA, **one), state_of(found.stream))
        assert again.stream.known() == feed.known()


def test_a_mixture_continues_one_dataset_if_that_is_allowed() -> None:
    """And its states need no permission any more."""
    feed = feed_of(CORPORA, dataset="web", seed=1)
    past = deliver(feed, 30)
    own = {"mixture": {"web": 3, "code": 2}, "seed": 1}
    allow = ("order", "seed", "fingerprint")

    with pytest.raises(StreamMismatch, match="the state is of one dataset; pass dataset= in place"):
        restarted(feed, feed_of(CORPORA, **own))
    found = restarted(feed, feed_of(CORPORA, **own), allow)

    assert stages_of(found) == [(0, {"web": 1}), (30, {"web": 3, "code": 2})]
    assert rows_of(found.known(), range(30)) == past
    past += deliver(found, 60)
    # "web" goes on where it was, and "code" begins.
    own_samples = [row.own_sample for row in past if row.fingerprint == bytes(32)]
    assert sorted(own_samples) == list(range(66))
    again = load(feed_of(CORPORA, **own), state_of(found))
    assert not again.messages
    assert again.stream.known() == found.known()


def test_one_dataset_does_not_continue_a_mixture() -> None:
    """It would read one of its sources, and drop the others."""
    feed = feed_with({"web": 3, "code": 2})
    deliver(feed, 30)

    with pytest.raises(StreamMismatch, match="mixture: the state is of a mixture of web, code"):
        restarted(feed, feed_of(CORPORA, dataset="web"), ("order", "seed", "fingerprint"))


# --- one dataset ---

WINDOWS = {8: 374, 4: 749}
"""Of 3,000 tokens, by the context length."""
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "order": ({"order": "shuffled"}, {"order": "random"}),
    "seed": ({"seed": 1}, {"seed": 2}),
    "fingerprint": ({"dataset": "web"}, {"dataset": "code"}),
    "context_length": ({"context_length": 8}, {"context_length": 4}),
    "long_documents": (
        {"order": "padded", "long": "cut"},
        {"order": "padded", "long": "truncate"},
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_differs_is_named_unless_it_is_allowed(part: str) -> None:
    """A hash alone could not say that it was the seed."""
    before, now = PARTS[part]
    feed = feed_of(CORPORA, **before)
    past = deliver(feed, 30)
    allow = (part, "mid_epoch") if part == "context_length" else (part,)

    with pytest.raises(StreamMismatch, match=r"the state was saved with .*, but this stream") as no:
        restarted(feed, feed_of(CORPORA, **now))
    assert no.value.subject == part
    assert f"allow=({part!r},) to go on with other samples" in no.value.problem
    others = tuple(each for each in PARTS if each != part)
    with pytest.raises(StreamMismatch, match=f"^{part}"):
        restarted(feed, feed_of(CORPORA, **now), others)
    found = load(feed_of(CORPORA, **now), state_of(feed), allow=allow)

    assert f"part={part} " in "".join(found.messages)
    known = found.stream.known()
    assert rows_of(known, range(30)) == past
    assert [stage.first_sample for stage in known.stages] == [0, 30]
    assert known.stages[1].origin == RESUMED
    past += deliver(found.stream, 9)
    own = feed_of(CORPORA, **now)
    begin = known.stages[1].shares[0].base
    assert past[30:] == rows_of(own.known(), range(begin, begin + 9))
    # The states of both are known by themselves.
    assert load(feed_of(CORPORA, **now), state_of(found.stream)).stream.known() == known
    assert load(feed_of(CORPORA, **before), state_of(feed)).stream.known() == feed.known()


def test_a_run_that_goes_back_to_its_first_seed_has_three_stages() -> None:
    """And goes on where it is, rather than where it was."""
    seeds, past = [1, 2, 1], list[Row]()
    feed = feed_of(CORPORA, seed=1)
    for number, seed in enumerate(seeds):
        if number:
            feed = restarted(feed, feed_of(CORPORA, seed=seed), ("seed",))
        past += deliver(feed, 10)

    assert [row.seed for row in past] == [1] * 10 + [2] * 10 + [1] * 10
    assert [row.own_sample for row in past] == list(range(30))
    assert rows_of(feed.known(), range(30)) == past
    assert restarted(feed, feed_of(CORPORA, seed=1)).known() == feed.known()
    with pytest.raises(StreamMismatch, match="seed: the state was saved with 1, but this"):
        restarted(feed, feed_of(CORPORA, seed=2))


def test_a_change_at_the_first_sample_of_a_stage_takes_its_place() -> None:
    """No row was read of the stage before, so it is nothing that was."""
    feed = restarted(feed_of(CORPORA, seed=1), feed_of(CORPORA, seed=2), ("seed",))

    assert len(feed.stream.stages) == 1
    assert [row.seed for row in deliver(feed, 3)] == [2, 2, 2]
    fresh = feed_of(CORPORA, seed=2)
    deliver(fresh, 3)
    assert rows_of(feed.known(), range(3)) == rows_of(fresh.known(), range(3))
    assert restarted(feed, feed_of(CORPORA, seed=2)).known() == feed.known()


Delivered = list[tuple[int, Row]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "back", "pad", "other", "older"]),
            st.integers(1, 40),
            st.sampled_from(["web", "code"]),
            st.sampled_from(["shuffled", "sequential", "random"]),
            st.sampled_from([1, 2]),
            st.sampled_from([8, 4]),
        ),
        max_size=14,
    )
)
def test_a_history_tells_what_each_sample_was_whatever_was_changed_since(
    steps: list[tuple[str, int, str, str, int, int]],
) -> None:
    """Of loops that went back to an epoch, too: a sample has one stage, so that a new one begins
    behind all that were delivered.
    """
    allow = ("order", "seed", "context_length", "fingerprint", "mid_epoch")
    feed, delivered = feed_of(CORPORA), Delivered()
    older: list[tuple[dict[str, Any], Delivered]] = []
    for action, count, dataset, order, seed, length in steps:
        begin = feed.stage.first_sample
        if action == "read":
            older.append((state_of(feed), [*delivered]))
            first = feed.cursor.sample
            delivered += enumerate(deliver(feed, count), first)
        elif action == "back":
            feed.cursor.seek(begin + (feed.cursor.sample - begin) * count // 41)
            first = feed.cursor.sample
            delivered += enumerate(deliver(feed, 2), first)
        elif action == "pad":
            first = feed.cursor.sample
            feed.cursor.current = feed.cursor.after(first, first + 1, first + 1 + count)
            delivered += enumerate(rows_of(feed.known(), [first]), first)
        else:
            state = state_of(feed)
            if action == "older" and older:
                state, before = older[count % len(older)]
                delivered = [*before]
            own = feed_of(CORPORA, 1, length, dataset=dataset, order=order, seed=seed)
            feed = load(own, state, allow=allow).stream
        known = feed.known()
        told: Delivered = []
        for run in feed.cursor.now[2].runs:
            samples = range(run.first_sample, run.end_sample)
            told += zip(samples, rows_of(known, samples), strict=True)
        assert told == delivered


def test_a_loop_back_is_attributed_to_the_stage_that_it_was_read_in() -> None:
    """Epoch 1, then epoch 0 once more, and from there on another seed."""
    feed = feed_of(CORPORA, 2, seed=1)
    windows = feed.require_rows()
    feed.cursor.seek(windows)
    delivered = deliver(feed, 5)
    feed.cursor.seek(0)
    delivered += deliver(feed, 3)

    found = restarted(feed, feed_of(CORPORA, 2, seed=2), ("seed",))

    assert feed.cursor.sample == 6
    assert found.cursor.sample == windows + 10, "behind all that was delivered"
    delivered += deliver(found, 2)
    history = found.cursor.now[2]
    runs = named_runs(found.known(), history)
    assert [run["first_sample"] for run in runs] == [windows, 0, windows + 10]
    assert [run["stages"][0]["sources"][0]["seed"] for run in runs] == [1, 1, 2]
    assert [len(run["stages"]) for run in runs] == [1, 1, 1]
    told = [
        row
        for run in history.runs
        for row in rows_of(found.known(), range(run.first_sample, run.end_sample))
    ]
    assert told == delivered
    # It goes on with the source's own sample where the feed was.
    assert told[-4].own_sample == 6


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
@pytest.mark.parametrize(
    "stages",
    [
        [{"weights": {"web": 3, "code": 1}}],
        [{"weights": {"web": 3, "code": 1}}, {"first_sample": 400, "weights": {"code": 1}}],
        [{"weights": {"web": 1}}, {"first_sample": 400, "weights": {"code": 1}}],
        [{"weights": {"code": 1}}, {"first_sample": 400, "weights": {"web": 1}}],
    ],
)
def test_no_stage_of_a_mixture_goes_on_with_a_dataset_at_another_context_length(
    order: str, stages: list[dict[str, Any]]
) -> None:
    """Its sample counts rows of the length before, so some rows would repeat and others be lost."""
    feed = feed_of(CORPORA, 1, 8, dataset="web", order=order)
    deliver(feed, 100)
    mixture = feed_of(CORPORA, 1, 16, mixture=Mixture(stages=stages), order=order)

    with pytest.raises(StreamMismatch, match="this mixture has 16, and goes on with 'web'"):
        load(mixture, state_of(feed), allow=("mixture", "context_length"))


# --- another context length ---


def at_length(
    sample: int,
    before: int,
    now: int,
    *,
    order: str = "shuffled",
    files: tuple[int, ...] = (3000,),
    allow: Collection[str] = ("context_length",),
    now_order: str = "",
    now_files: tuple[int, ...] = (),
) -> int:
    """The source's own sample at which a feed goes on at another context length."""
    feed = feed_of({"web": Corpus(files, 1)}, 1, before, order=order)
    state = state_of(moved(feed, sample))
    corpora = {"web": Corpus(now_files or files, 2 if now_files else 1)}
    own = feed_of(corpora, 1, now, order=now_order or order)
    found = load(own, state, allow=allow).stream
    assert found.cursor.sample == sample
    return found.stage.active[0].base + sample - found.stage.first_sample


@given(
    epoch=st.integers(0, 10**6),
    tokens=st.integers(5001, 10**12),
    before=st.integers(1, 5000),
    now=st.integers(1, 5000),
    order=st.sampled_from(["shuffled", "sequential"]),
)
def test_the_end_of_an_epoch_is_the_beginning_of_the_next_one(
    epoch: int, tokens: int, before: int, now: int, order: str
) -> None:
    """Everything of it was seen once, and nothing of the next one."""
    windows, windows_now = ((tokens - 1) // length for length in (before, now))
    assume(max(epoch * windows, epoch * windows_now) < 2**62)

    found = at_length(epoch * windows, before, now, order=order, files=(tokens,))

    assert found == epoch * windows_now


@given(
    epoch=st.integers(0, 1000),
    tokens=st.integers(2, 10**9),
    lengths=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    data=st.data(),
)
def test_in_the_order_of_one_file_a_place_stays_at_its_token(
    epoch: int, tokens: int, lengths: tuple[int, int], data: st.DataObject
) -> None:
    """Rounded down, so that less than one window comes again, and nothing is left out."""
    before, now = ((tokens - 1) // length for length in lengths)
    assume(before and now)
    into = data.draw(st.integers(0, before - 1))

    sample = epoch * before + into
    own = at_length(sample, *lengths, order="sequential", files=(tokens,))

    found = own - epoch * now
    assert 0 <= found <= now
    repeated = into * lengths[0] - found * lengths[1]
    assert 0 <= repeated < lengths[1]


def test_the_middle_of_a_shuffled_epoch_is_refused_with_what_would_come_twice_and_the_cures() -> (
    None
):
    """3 of 8 windows of epoch 2 were seen, so 3 of 8 of what follows were."""
    with pytest.raises(StreamMismatch) as caught:
        at_length(2 * 8 + 3, 2048, 1024, files=(17_000,))

    assert caught.value.subject == "context_length"
    assert "saved with 2048, 37.5 % into epoch 2" in caught.value.problem
    assert "37.5 % of the rest of that epoch was already seen" in caught.value.problem
    assert "start_sample=48 instead of the state to begin with epoch 3" in caught.value.problem
    assert "allow=('context_length', 'mid_epoch') to resume anyway" in caught.value.problem


def test_the_middle_of_a_shuffled_epoch_may_be_allowed_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For a large epoch with little left of the run."""
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        found = at_length(
            2 * 8 + 3, 2048, 1024, files=(17_000,), allow=("context_length", "mid_epoch")
        )

    assert found == 2 * 16 + 6
    assert "saved=2048 now=1024 epoch=2 seen=37.5 % source_sample=38: it is another" in caplog.text
    assert "37.5 % of the rest of that epoch was already seen" in caplog.text


def test_in_the_order_of_several_files_it_is_refused_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each file has other windows then: at a fraction of all of them is another place."""
    options: dict[str, Any] = {"order": "sequential", "files": (80, 40, 40)}

    with pytest.raises(StreamMismatch, match="each of the 3 files is cut into other windows"):
        at_length(2 * 17 + 3, 8, 4, **options)
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        allowed = ("context_length", "mid_epoch")
        assert at_length(2 * 17 + 3, 8, 4, allow=allowed, **options) == 2 * 37 + 6
        assert at_length(2 * 17, 8, 4, **options) == 2 * 37

    assert "epoch=2 seen=17.65 % source_sample=80: each of the 3 files" in caplog.text
    assert "epoch=2 seen=0 % source_sample=74: nothing repeats" in caplog.text


@pytest.mark.parametrize(
    ("order", "now_order"), [("shuffled", "sequential"), ("sequential", "shuffled")]
)
def test_corpus_order_on_one_side_alone_is_refused_all_the_same(order: str, now_order: str) -> None:
    """What was seen and what follows lie across each other."""
    allow = ("context_length", "order", "seed")

    with pytest.raises(StreamMismatch, match=r"37\.5 %"):
        at_length(3, 8, 4, order=order, now_order=now_order, files=(65,), allow=allow)


def test_how_far_an_epoch_of_another_corpus_was_is_not_guessed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its number of windows went with it."""
    allow = ("context_length", "fingerprint")

    with pytest.raises(StreamMismatch, match="seen part of the epoch is unknown") as caught:
        at_length(19, 8, 4, now_files=(900,), allow=allow)
    assert "('context_length', 'fingerprint', 'mid_epoch')" in caught.value.problem

    assert at_length(19, 8, 4, now_files=(900,), allow=(*allow, "mid_epoch")) == 19
    assert "source_sample=19: an unknown part of the epoch may repeat or be skipped" in caplog.text


def test_a_place_that_would_reach_2_63_is_refused() -> None:
    """A corpus of one window then, and of many now."""
    with pytest.raises(SamplesExhausted, match=r"^state\.sample"):
        at_length(2**62, 2048, 512, files=(2049,))


@pytest.mark.parametrize(
    ("sample", "now", "order", "now_order"),
    [
        (0, 4, "shuffled", ""),
        (7, 8, "shuffled", ""),
        (7, 4, "random", ""),
        (7, 4, "random", "shuffled"),
        (7, 4, "shuffled", "random"),
    ],
)
def test_a_sample_stays_what_it_is_where_there_is_nothing_to_convert(
    sample: int, now: int, order: str, now_order: str
) -> None:
    """At the beginning, at the same context length, and for an order without epochs."""
    allow = ("context_length", "order", "seed")

    found = at_length(sample, 8, now, order=order, now_order=now_order, allow=allow)

    assert found == sample


def test_a_length_that_changes_twice_counts_epochs_from_where_each_began() -> None:
    """The source's own sample is converted, and not that of the stream."""
    feed = feed_of(CORPORA, 1, 8)
    assert feed.position_of(2 * WINDOWS[8]).epoch == 2
    feed = moved(feed, 2 * WINDOWS[8])
    feed = restarted(feed, feed_of(CORPORA, 1, 4), ("context_length",))
    begin = feed.cursor.sample
    assert begin == 2 * WINDOWS[8]
    assert [feed.position_of(begin + n).epoch for n in (0, WINDOWS[4] - 1, WINDOWS[4])] == [2, 2, 3]

    feed = moved(feed, begin + WINDOWS[4])
    feed = restarted(feed, feed_of(CORPORA, 1, 8), ("context_length",))

    assert feed.position_of(feed.cursor.sample).epoch == 3
    assert feed.cursor.sample == begin + WINDOWS[4]
    (row,) = deliver(feed, 1)
    assert row.own_sample == 3 * WINDOWS[8]


# --- packed rows ---


def test_pieces_at_all_context_lengths_of_a_run_stay_known() -> None:
    """The identity of its earlier rows covers them."""
    feed = feed_of(CORPORA, 1, 8, order="packed")
    past = deliver(feed, 30)
    identities = [feed.known().identity(each) for each in range(30)]

    feed = restarted(feed, feed_of(CORPORA, 1, 4, order="packed"), ("context_length", "mid_epoch"))

    past += deliver(feed, 30)
    known = feed.known()
    (source,) = known.sources
    assert source.corpus is not None
    assert [length for length, _ in source.corpus.pieces] == [4, 8]
    assert rows_of(known, range(60)) == past
    assert [known.identity(each) for each in range(30)] == identities
    assert restarted(feed, feed_of(CORPORA, 1, 4, order="packed")).known() == known


# --- redactions ---

ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32
LISTED = {name: corpus._replace(lists=(ONE, OTHER)) for name, corpus in CORPORA.items()}
At = tuple[int, bytes]


def redacted(*redactions: At, **options: Any) -> FeedStream:
    """A feed over one dataset that was told to leave out lists before its first batch."""
    feed = feed_of(LISTED, **options)
    for first_sample, listed in redactions:
        feed, _ = requested_changes.redacted(feed, listed.hex(), first_sample, None, None)
    return feed


def in_force(feed: FeedStream) -> list[At]:
    return [(each.first_sample, each.list_hash) for each in feed.stream.redactions]


def test_a_list_is_in_force_from_the_earliest_sample_that_was_asked_for() -> None:
    """The same twice is one; two lists of a dataset may begin at the same sample."""
    feed = feed_of(LISTED)
    steps = [(9, ONE, 9), (9, ONE, 9), (12, ONE, 9), (5, ONE, 5), (5, OTHER, 5), (8, OTHER, 5)]
    for at_sample, listed, expected in steps:
        feed, begin = requested_changes.redacted(feed, listed.hex(), at_sample, None, None)
        assert begin == expected

    assert in_force(feed) == [(5, ONE), (5, OTHER)]


def test_no_redaction_begins_where_rows_were_delivered() -> None:
    """Also not where a loop has been that went back since."""
    feed = feed_of(LISTED)
    deliver(feed, 40)
    feed.cursor.seek(10)

    with pytest.raises(InvalidRequest, match="at_sample: 10 is before 40"):
        requested_changes.redacted(feed, ONE.hex(), 10, None, None)
    for at_sample in (40, None):
        assert in_force(requested_changes.redacted(feed, ONE.hex(), at_sample, None, None)[0]) == [
            (40, ONE)
        ]


def test_a_list_that_no_server_has_is_refused() -> None:
    """Before the feed has promised anything."""
    with pytest.raises(StreamMismatch, match="lacks redaction list 0101"):
        requested_changes.redacted(feed_of(CORPORA), ONE.hex(), 5, None, None)


@pytest.mark.parametrize(
    ("saved", "own", "expected"),
    [
        ([(3, ONE)], [], [(3, ONE)]),
        ([(30, ONE)], [], [(30, ONE)]),
        ([], [(10, ONE)], [(10, ONE)]),
        ([(3, ONE)], [(3, ONE)], [(3, ONE)]),
        ([(3, ONE)], [(12, ONE)], [(3, ONE)]),
        ([(30, ONE)], [(12, ONE)], [(12, ONE)]),
        ([(12, ONE)], [(30, ONE)], [(12, ONE)]),
        ([(3, ONE)], [(10, OTHER)], [(3, ONE), (10, OTHER)]),
    ],
)
def test_a_resumed_feed_has_the_redactions_of_the_state_and_its_own_later_ones(
    saved: list[At], own: list[At], expected: list[At]
) -> None:
    """The state was saved at sample 10."""
    feed = redacted(*saved)
    deliver(feed, 10)

    found = load(redacted(*own), state_of(feed))

    assert (in_force(found.stream), found.messages) == (expected, ())


@pytest.mark.parametrize(
    ("saved", "own", "problem", "allowed"),
    [
        ([], [(9, ONE)], "at sample 10, has no list 0101.* from sample 9 on; pass 10", [(10, ONE)]),
        ([(3, ONE)], [(4, ONE)], "has list 01.* sample 3 on, but .* 4 on; pass 3", [(3, ONE)]),
        ([(4, ONE)], [(3, ONE)], "has list 01.* sample 4 on, but .* 3 on; pass 4", [(4, ONE)]),
        ([(30, ONE)], [(3, ONE)], "has list 01.* from sample 30 on, but .* 3 on", [(10, ONE)]),
        ([(3, ONE)], [(3, OTHER)], "has no list 0202", [(3, ONE), (10, OTHER)]),
    ],
)
def test_an_own_redaction_that_the_rows_before_had_not_is_refused_unless_it_is_allowed(
    saved: list[At], own: list[At], problem: str, allowed: list[At]
) -> None:
    """It is then in force from the saved sample on, and the state says what was before."""
    feed = redacted(*saved)
    deliver(feed, 10)
    with pytest.raises(StreamMismatch, match=problem) as caught:
        load(redacted(*own), state_of(feed))
    assert caught.value.subject == "redactions"

    found = load(redacted(*own), state_of(feed), allow=("redactions",))

    assert in_force(found.stream) == allowed
    assert len(found.messages) == 1


def test_redactions_of_a_state_follow_their_corpus() -> None:
    """Into a dataset of another name; one of a corpus that is gone is refused, or logged."""
    corpora = LISTED | {"renamed": LISTED["web"]}
    feed = redacted((3, ONE), dataset="web")
    deliver(feed, 10)

    found = load(feed_of(corpora, dataset="renamed"), state_of(feed))
    assert in_force(found.stream) == [(3, ONE)]

    other = feed_of(corpora, dataset="code")
    with pytest.raises(StreamMismatch, match=f"the state has list {ONE.hex()} of another corpus"):
        load(other, state_of(feed), allow=("fingerprint",))
    found = load(other, state_of(feed), allow=("fingerprint", "redactions"))
    assert f"redactions of another corpus are dropped list={ONE.hex()}" in found.messages
    # What was redacted of the rows before stays known.
    assert in_force(found.stream) == [(3, ONE)]
    assert {each.source for each in found.stream.stream.rest(10).redactions} == set()


@pytest.mark.parametrize("allow", [("seed",), ("context_length",)])
def test_on_another_stream_of_its_corpus_a_redaction_stays_in_force(allow: tuple[str]) -> None:
    """Its tokens must not come again."""
    feed = redacted((0, ONE), (500, OTHER), order="random", seed=1)
    deliver(feed, 10)
    options: dict[str, Any] = (
        {"seed": 2} if allow == ("seed",) else {"context_length": 4, "seed": 1}
    )

    found = load(feed_of(LISTED, order="random", **options), state_of(feed), allow=allow).stream

    rest = found.stream.rest(10)
    assert {(max(10, each.first_sample), each.list_hash) for each in rest.redactions} == {
        (10, ONE),
        (500, OTHER),
    }
    before = [each for each in found.stream.redactions if each.first_sample < 10]
    assert before == [Redaction(0, 0, ONE)]
    assert restarted(found, feed_of(LISTED, order="random", **options)).known() == found.known()


# --- planes ---

MASKED = {name: corpus._replace(planes={51: 7}) for name, corpus in CORPORA.items()}
RE_MASKED = {name: corpus._replace(planes={51: 8}) for name, corpus in CORPORA.items()}


@pytest.mark.parametrize("now", [RE_MASKED, CORPORA], ids=["another", "none"])
@pytest.mark.parametrize("options", [{"dataset": "web"}, {"mixture": {"web": 3, "code": 2}}])
def test_other_masks_are_refused_unless_they_are_allowed(
    now: Corpora, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Of a mask that was taken away, too: the same tokens would teach something else."""
    feed = feed_of(MASKED, **options)
    deliver(feed, 10)
    with pytest.raises(StreamMismatch, match=f"planes: .* loss mask {'07' * 32}.*, but this"):
        restarted(feed, feed_of(now, **options), ("fingerprint",))
    assert caplog.text == ""

    found = restarted(feed, feed_of(now, **options), ("planes",))

    assert "resumed with other targets plane='loss mask'" in caplog.text
    assert found.known() == feed.known()


def test_a_feed_that_ignores_masks_has_said_so(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and no permission is needed."""
    feed = feed_of(MASKED)
    deliver(feed, 10)

    restarted(feed, feed_of(RE_MASKED, loss_mask="ignore"))
    assert "resumed with other targets plane='loss mask'" in caplog.text

    caplog.clear()
    restarted(feed, feed_of(MASKED))
    assert caplog.text == ""


def test_a_mask_that_was_not_there_before_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The owner of the corpus has added it."""
    feed = feed_of(CORPORA)
    deliver(feed, 10)

    restarted(feed, feed_of(MASKED))

    assert f"saved=None now={'07' * 32}" in caplog.text


# --- permissions ---


@pytest.mark.parametrize(
    "allow", ["fingerprint", ("corpus",), ("rank",), [[1]], [{}], 10**5000, [None]], ids=kind_of
)
def test_what_cannot_be_allowed_is_refused(allow: Any) -> None:
    """A typing error there would be found on the day of the accident."""
    feed = feed_of(CORPORA)

    with pytest.raises(InvalidRequest) as caught:
        load(feed, state_of(feed), allow=allow)

    assert caught.value.subject == "allow"


def test_a_state_that_is_refused_changes_nothing() -> None:
    """The trainer may catch the error and go on."""
    feed, other = feed_of(CORPORA, seed=1), feed_of(CORPORA, seed=2)
    deliver(feed, 10)
    deliver(other, 3)
    before = other.stream, other.cursor.current

    with pytest.raises(StreamMismatch):
        load(other, state_of(feed))

    assert (other.stream, other.cursor.current) == before
    assert other.cursor.current is before[1]
