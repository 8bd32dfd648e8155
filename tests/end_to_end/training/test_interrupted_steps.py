"""A state belongs to weights: it says which batches they have learned, wherever a step ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from client import InvalidRequest, NumpyBatches, RemoteBatches
from tests.conftest import Serve, WriteTokens
from tests.support.offline import offline_rows, received_rows

T, B, WINDOWS = 8, 4, 40
Open = Callable[..., RemoteBatches]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(WINDOWS * T + 1))


@pytest.fixture
def open_feed(serve: Serve, path: Path) -> Iterator[Open]:
    """Open feeds of one server, or of another target."""
    server, opened = serve("--data", path), []

    def start(kind: Any = RemoteBatches, **given: Any) -> RemoteBatches:
        arguments = {"seed": 5, "rank": 0, "world_size": 1} | given
        opened.append(kind(server.address, B, T, **arguments))
        return opened[-1]

    yield start
    for feed in opened:
        feed.close()


def rows_from(feed: RemoteBatches, state: dict[str, Any], batches: int) -> list[list[int]]:
    """The rows that a feed delivers from a saved state on."""
    feed.load_state_dict(json.loads(json.dumps(state)))
    return received_rows([next(feed) for _ in range(batches)]).tolist()


def expected(path: Path, first: int, end: int) -> list[list[int]]:
    return offline_rows([path], "shuffled-1", 5, T, range(first, end)).tolist()


class Interrupted(Exception):
    """A Ctrl-C, or any error between `next` and the optimizer's step."""


def steps(batches: Iterable[Any], accumulate: int, fail_at: int) -> Iterator[tuple[Any, bool]]:
    """The loop of docs/resume-and-ranks.md: yield the first batch of the step in hand, None if the
    optimizer has made its step; and fail at a batch.
    """
    first = None
    for number, batch in enumerate(batches, 1):
        first = batch if first is None else first
        if number == fail_at:
            yield first, True
            return
        if number % accumulate == 0:
            first = None
        yield first, False


@pytest.mark.parametrize(("accumulate", "fail_at", "learned"), [(1, 3, 2), (3, 8, 6), (3, 6, 3)])
@pytest.mark.parametrize("rich", [False, True])
def test_a_state_before_the_batch_in_hand_has_what_the_weights_have_learned(
    open_feed: Open, path: Path, accumulate: int, fail_at: int, learned: int, rich: bool
) -> None:
    """A Ctrl-C between `next` and the optimizer's step; of several batches the first counts."""
    feed = open_feed()

    for first, failed in steps(feed.batches() if rich else feed, accumulate, fail_at):
        if failed:
            state = feed.state_dict(before=first)

    assert feed.state_dict()["sample"] == fail_at * B
    assert state["sample"] == learned * B
    first_row = learned * B
    assert rows_from(open_feed(), state, 2) == expected(path, first_row, first_row + 2 * B)


def test_between_two_steps_no_batch_is_in_hand_and_the_state_is_that_of_now(
    open_feed: Open,
) -> None:
    """So a handler of Ctrl-C needs no case of its own."""
    feed = open_feed()
    next(feed)

    assert feed.state_dict(before=None) == feed.state_dict()


@pytest.mark.parametrize("form", ["pair", "x", "dict", "list of a DataLoader", "names", "arrays"])
def test_a_batch_is_known_in_any_form_that_holds_its_x(open_feed: Open, form: str) -> None:
    """A trainer may have unpacked it, or given it the names of its model."""
    feed = open_feed(NumpyBatches if form == "arrays" else RemoteBatches)
    next(feed)
    if form == "list of a DataLoader":
        batch: Any = next(iter(DataLoader(feed, batch_size=None)))
    elif form == "names":
        batch = next(feed.batches()).as_kwargs("transformers")
    else:
        x, y = next(feed)
        batch = {"x": x, "dict": {"tokens": x, "other": 1}}.get(form, (x, y))
    next(feed)

    assert feed.state_dict(before=batch)["sample"] == B


def test_a_trainer_that_fills_its_own_tensors_means_what_they_hold_now(open_feed: Open) -> None:
    """Static inputs of a CUDA graph are the same tensors for each batch."""
    feed = open_feed()
    x, y = torch.empty((B, T), dtype=torch.int64), torch.empty((B, T), dtype=torch.int64)
    for _ in range(3):
        assert feed.copy_into(x, y)

    assert feed.state_dict(before=(x, y))["sample"] == 2 * B


def test_a_batch_of_an_epoch_has_a_state_before_it_too(open_feed: Open, path: Path) -> None:
    """Whose history ends with the batch before."""
    feed = open_feed()
    batches = iter(feed.epoch(2))
    batch = [next(batches) for _ in range(4)][-1]

    state = feed.state_dict(before=batch)

    assert state["sample"] == (2 * WINDOWS) + 3 * B
    other = open_feed()
    other.load_state_dict(state)
    assert [run["end_sample"] for run in other.history()] == [2 * WINDOWS + 3 * B]
    assert received_rows([next(iter(other.epoch(2)))]).tolist() == received_rows([batch]).tolist()


@pytest.mark.parametrize("what", ["a copy", "of another feed", "too old", "no batch"])
def test_a_batch_that_this_feed_does_not_remember_is_refused_by_name(
    open_feed: Open, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A state that is wrong by a batch would be found by nobody."""
    feed = open_feed()
    batch = next(feed)
    if what == "a copy":
        given: Any = [each.clone() for each in batch]
    elif what == "of another feed":
        given = next(open_feed())
    elif what == "too old":
        given, later = batch, [next(feed) for _ in range(1024)]
        assert feed.state_dict(before=later[0])["sample"] == B
    else:
        given = {"labels": 3}

    with pytest.raises(InvalidRequest, match=r"^before: is none of the last 1024 batches of this"):
        feed.state_dict(before=given)


def test_a_state_before_a_batch_has_what_was_read_then(open_feed: Open) -> None:
    """A skip behind the batch is not in it."""
    feed = open_feed()
    next(feed)
    batch = next(feed)
    feed.skip(100)
    next(feed)

    state = feed.state_dict(before=batch)

    assert state["sample"] == B
    assert len(state["history"]) == 1 < len(feed.state_dict()["history"])


@pytest.mark.parametrize("rich", [False, True])
def test_a_state_before_a_batch_has_the_changes_that_were_made_since(
    serve: Serve, write_tokens: WriteTokens, rich: bool
) -> None:
    """A mixture that changes while a batch is in hand, and a run that resumes before that batch."""
    data = [
        f"{name}={write_tokens(np.arange(321) + 1000 * place)}" for place, name in enumerate("ab")
    ]
    address = serve("--data", data[0], "--data", data[1]).address
    options: dict[str, Any] = {"mixture": {"a": 1, "b": 1}, "seed": 5, "rank": 0, "world_size": 1}
    with RemoteBatches(address, B, T, **options) as feed:
        batches = iter(feed.batches() if rich else feed)
        next(batches)
        in_hand = next(batches)
        begun = feed.change_mixture({"b": 1}, at_sample=4 * B)
        state = in_hand.state_before if rich else feed.state_dict(before=in_hand)
        rest = received_rows([next(feed) for _ in range(6)]).tolist()

    assert begun == 4 * B
    with RemoteBatches(address, B, T, **options) as feed:
        rows = rows_from(feed, state, 7)
    x, y = in_hand
    assert rows == received_rows([(x, y)]).tolist() + rest
    assert all(token >= 1000 for row in rows[3 * B :] for token in row)
