"""Feeds over local files that go on as other streams: which rows come, and what they say of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest, NumpyBatches, StreamMismatch
from tests.conftest import WriteTokens
from tests.support.packed_corpora import write_corpus

B, T, STEPS = 3, 8, 5
WINDOWS = 50
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}
Files = Mapping[str, Path]


@pytest.fixture
def files(write_tokens: WriteTokens) -> Files:
    """Two corpora of 50 windows, whose tokens tell their corpus and place."""
    return {
        name: write_tokens(np.arange(first, first + WINDOWS * T + 1), f"{name}.bin")
        for name, first in (("web", 1000), ("code", 20_000), ("math", 30_000))
    }


def feed_over(files: Files, context_length: int = T, **options: Any) -> NumpyBatches:
    """A feed of one rank without a thread."""
    target = "file:" + ",".join(f"{name}={path}" for name, path in files.items())
    if "mixture" not in options:
        options = {"dataset": "web"} | options
    defaults = {"order": "shuffled", "prefetch_bytes": 0, **ALONE}
    return NumpyBatches(target, B, context_length, **(defaults | options))


def take(feed: NumpyBatches, steps: int = STEPS) -> list[list[int]]:
    """The next rows."""
    return [row.tolist() for _ in range(steps) for row in next(feed)[0]]


def state_of(feed: NumpyBatches) -> dict[str, Any]:
    """As a checkpoint holds it."""
    state: dict[str, Any] = json.loads(json.dumps(feed.state_dict()))
    return state


def told(feed: NumpyBatches, name: str) -> list[tuple[int, Any]]:
    """Where each stage of the history begins, and a value of it or of its only source."""
    stages = {
        stage["first_sample"]: stage.get(name, stage["sources"][0].get(name))
        for run in feed.history()
        for stage in run["stages"]
    }
    return sorted(stages.items())


PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seed": ({"seed": 1}, {"seed": 2}),
    "order": ({"seed": 1}, {"seed": 1, "order": "random"}),
    "fingerprint": ({"dataset": "web"}, {"dataset": "code"}),
    "context_length": (
        {"order": "random", "context_length": 8},
        {"order": "random", "context_length": 5},
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_feed_goes_on_as_another_stream_where_that_is_allowed(files: Files, part: str) -> None:
    """Rows before the saved sample are those of one, and rows behind it those of the other; the
    history names both, and neither of their states needs a permission again.
    """
    before, now = PARTS[part]
    with feed_over(files, **before) as feed, feed_over(files, **now) as other:
        expected = take(feed), take(other, 2 * STEPS)[STEPS * B :]
    with feed_over(files, **before) as feed:
        found = take(feed)
        old_state = state_of(feed)
    with feed_over(files, **now) as feed:
        with pytest.raises(StreamMismatch, match=f"^{part}: the state was saved with"):
            feed.load_state_dict(old_state)
        feed.load_state_dict(old_state, allow=(part,))
        later = take(feed, 3)
        state = state_of(feed)
        stages = [begin for begin, _ in told(feed, part)]
        values = [value for _, value in told(feed, part)]
    assert stages == [0, STEPS * B]
    assert len(set(map(str, values))) == 2

    with feed_over(files, **now) as feed:
        feed.load_state_dict(state)
        assert [run["first_sample"] for run in feed.history()] == [0]
        later += take(feed, STEPS - 3)
        assert told(feed, part) == list(zip(stages, values, strict=True))
    with feed_over(files, **before) as feed:
        feed.load_state_dict(old_state)
        with feed_over(files, **before) as whole:
            assert take(whole, 2 * STEPS)[STEPS * B :] == take(feed)

    assert (found, later) == expected


def test_a_run_may_go_to_another_seed_and_back(files: Files) -> None:
    """Three stages, each with the rows of its seed at the samples of the run."""
    rows: dict[int, list[list[int]]] = {}
    for seed in (1, 2):
        with feed_over(files, seed=seed) as feed:
            rows[seed] = take(feed, 3 * STEPS)
    state, found = None, []
    for seed in (1, 2, 1):
        with feed_over(files, seed=seed) as feed:
            if state is not None:
                feed.load_state_dict(state, allow=("seed",))
            found += take(feed)
            state = state_of(feed)
            history = told(feed, "seed")

    n = STEPS * B
    assert found == rows[1][:n] + rows[2][n : 2 * n] + rows[1][2 * n :]
    assert history == [(0, 1), (n, 2), (2 * n, 1)]


def test_a_run_goes_on_as_a_mixture_and_then_its_state_says_so(files: Files) -> None:
    """The dataset goes on where it was, as one of several."""
    mixture = {"web": 2, "code": 1}
    with feed_over(files, seed=1) as feed:
        found, state = take(feed), state_of(feed)
    with feed_over(files, seed=1, mixture=mixture) as feed:
        with pytest.raises(StreamMismatch, match="the state is of one dataset; pass dataset="):
            feed.load_state_dict(state)
        feed.load_state_dict(state, allow=("order", "seed", "fingerprint"))
        found += take(feed, 3)
        state = state_of(feed)
        assert {name: each.samples for name, each in feed.stats().sources.items()} == {
            "web": STEPS * B + 6,
            "code": 3,
        }
    with feed_over(files, seed=1, mixture=mixture) as feed:
        feed.load_state_dict(state)
        found += take(feed, 6)

    with feed_over(files, seed=1) as web, feed_over(files, seed=1, dataset="code") as code:
        expected = {"web": take(web, 11), "code": take(code, 3)}
    for name, first in (("web", 1000), ("code", 20_000)):
        own = [row for row in found if first <= row[0] < first + 9000]
        assert sorted(own) == sorted(expected[name])


@pytest.mark.parametrize("first", ["dataset", "mixture"])
def test_a_mixture_of_one_dataset_and_that_dataset_load_each_other_s_states(
    files: Files, first: str
) -> None:
    """One stream under two names: no permission, and the same rows."""
    kinds: dict[str, dict[str, Any]] = {
        "dataset": {"dataset": "web"},
        "mixture": {"mixture": {"web": 1}},
    }
    second = "mixture" if first == "dataset" else "dataset"
    with feed_over(files, seed=1, **kinds[first]) as feed:
        expected = take(feed, 3 * STEPS)
    with feed_over(files, seed=1, **kinds[first]) as feed:
        found, state = take(feed), state_of(feed)
    for kind in (second, first):
        with feed_over(files, seed=1, **kinds[kind]) as feed:
            feed.load_state_dict(state)
            found += take(feed)
            state = state_of(feed)

    assert found == expected


# --- epochs behind a change ---


def test_behind_a_change_of_the_length_epochs_are_those_of_the_new_windows(files: Files) -> None:
    """The stream's sample goes on, and the source's own begins with its next epoch."""
    with feed_over(files, seed=1) as feed:
        epoch = [row for x, _ in feed.epoch(0, "pad") for row in x.tolist()][:WINDOWS]
        assert len({row[0] for row in epoch}) == WINDOWS
        state = state_of(feed)
        assert (state["sample"], feed.position.epoch) == (WINDOWS, 1)

    short = 5
    windows = WINDOWS * T // short
    with feed_over(files, short, seed=1) as other:
        expected = [row for x, _ in other.epoch(1) for row in x.tolist()]
    with feed_over(files, short, seed=1) as feed:
        with pytest.raises(StreamMismatch, match=r"^context_length: the state was saved with 8"):
            feed.load_state_dict(state)
        feed.load_state_dict(state, allow=("context_length",))
        assert feed.position == (WINDOWS, 1)
        assert feed.batches_per_epoch == windows // B
        found = [row for x, _ in feed.epoch(1) for row in x.tolist()]
        assert feed.position == (WINDOWS + windows, 2)
        again = state_of(feed)
    with feed_over(files, short, seed=1) as feed:
        feed.load_state_dict(again)
        assert feed.position.epoch == 2
        assert next(iter(feed.epoch(2)))[0].shape == (B, short)
        with pytest.raises(
            InvalidRequest, match=f"epoch: 0 began before sample {WINDOWS}, from which on"
        ):
            next(iter(feed.epoch(0)))
        assert feed.state_dict()["sample"] == WINDOWS + windows + B

    assert found == expected


def test_an_epoch_that_began_before_another_seed_goes_on_and_does_not_begin_again(
    files: Files,
) -> None:
    """The rest of it comes once; a second loop over it would need rows of the seed before."""
    with feed_over(files, seed=1) as feed:
        take(feed)
        state = state_of(feed)
    with feed_over(files, seed=2) as feed:
        feed.load_state_dict(state, allow=("seed",))
        epoch = feed.epoch(0)
        rest = [row for x, _ in epoch for row in x.tolist()]
        assert len(rest) == (WINDOWS - STEPS * B) // B * B
        with pytest.raises(InvalidRequest, match=f"0 began before sample {STEPS * B}, from which"):
            next(iter(epoch))
        later = [row for x, _ in feed.epoch(1, "pad") for row in x.tolist()]
    with feed_over(files, seed=2) as feed:
        assert rest == take(feed, WINDOWS // B)[STEPS * B :]
        assert later == [row for x, _ in feed.epoch(1, "pad") for row in x.tolist()]


def test_after_a_loop_back_a_new_stage_begins_behind_all_that_was_delivered(files: Files) -> None:
    """A sample has one stage, so the history attributes each batch to the one it was read in."""
    with feed_over(files, seed=1) as feed:
        seen = [row for x, _ in feed.epoch(1) for row in x.tolist()]
        for x, _ in feed.epoch(0):
            seen += x.tolist()
            break
        state = state_of(feed)
    assert state["sample"] == B
    with feed_over(files, seed=2) as feed:
        feed.load_state_dict(state, allow=("seed",))
        begin = feed.position.samples
        assert begin == WINDOWS + WINDOWS // B * B
        seen += take(feed, 2)
        history = feed.history()

    assert [
        (run["first_sample"], run["end_sample"], run["stages"][0]["sources"][0]["seed"])
        for run in history
    ] == [(WINDOWS, begin, 1), (0, B, 1), (begin, begin + 2 * B, 2)]
    replayed = []
    for run in history:
        (stage,) = run["stages"]
        (source,) = stage["sources"]
        own = source["base"] + run["first_sample"] - stage["first_sample"]
        with feed_over(files, seed=source["seed"], start_sample=own) as feed:
            replayed += take(feed, (run["end_sample"] - run["first_sample"]) // B)
    assert replayed == seen


# --- documents ---


@pytest.mark.parametrize("order", ["packed", "padded"])
def test_packed_rows_go_on_at_another_length_with_the_pieces_of_both_in_the_state(
    tmp_path: Path, order: str
) -> None:
    """What came before is still told by its identity, and the next load needs no permission."""
    corpus = write_corpus(tmp_path, [[7, 3, 12, 5, 9, 2, 30], [4, 4, 11, 6]], "web")

    def opened(length: int) -> NumpyBatches:
        return NumpyBatches(corpus.target, 1, length, order=order, seed=1, **ALONE)

    with opened(8) as feed:
        take(feed, feed.batches_per_epoch)
        state = state_of(feed)
    with opened(6) as other:
        begin = other.batches_per_epoch
        expected = take(other, 2 * begin)[begin:]
    with opened(6) as feed:
        feed.load_state_dict(state, allow=("context_length",))
        found = take(feed, 3)
        state = state_of(feed)
    assert [length for length, _ in state["stream"][1][0][5]] == [6, 8]
    with opened(6) as feed:
        feed.load_state_dict(state)
        found += take(feed, begin - 3)
        stages = [stage for run in feed.history() for stage in run["stages"]]

    assert found == expected
    assert [stage["context_length"] for stage in stages] == [8, 6]
    assert len({stage["sources"][0]["pieces"] for stage in stages}) == 2


# --- changes during a run ---


def changed_run(files: Files, steps: Collection[Mapping[str, int]]) -> list[list[int]]:
    """The rows of a run whose weights change before each block, saved and loaded in between."""
    found, state = [], None
    for weights in steps:
        with feed_over(files, mixture={"web": 1, "code": 1}, seed=1) as feed:
            if state is not None:
                feed.load_state_dict(state)
            feed.change_mixture(weights)
            found += take(feed, 2)
            state = state_of(feed)
    return found


def test_a_run_that_is_saved_between_its_changes_has_the_rows_of_one_that_is_not(
    files: Files,
) -> None:
    """A preemption changes nothing, wherever it comes."""
    steps = [{"web": 2, "code": 1}, {"code": 3}, {"web": 1, "math": 2}, {"math": 3}, {"web": 3}]
    with feed_over(files, mixture={"web": 1, "code": 1}, seed=1) as feed:
        expected = []
        for weights in steps:
            feed.change_mixture(weights)
            expected += take(feed, 2)
        ends = [begin for begin, _ in told(feed, "first_sample")]

    assert changed_run(files, steps) == expected
    assert len(ends) > 3
