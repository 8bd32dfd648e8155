"""A state that somebody has edited: refused by place, or the same stream at the same position."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client import Mixture
from tests.client.feed.imagined import Corpus, changed, deliver, feed_of, load, state_of
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.errors import InvalidRequest, StreamMismatch

Place = tuple[Any, ...]
State = dict[str, Any]

ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32
CORPORA = {
    name: Corpus((3000,), number, planes={51: 7, 50: 9}, lists=(ONE, OTHER))
    for number, name in enumerate(("web", "code", "math", "news"))
}
MIXTURE = Mixture(
    stages=[
        {"weights": {"web": 7, "code": 3}},
        {"first_sample": 100, "weights": {"web": 1, "math": 1}},
    ],
    sources={"code": {"order": "packed"}},
    redactions=[
        {"dataset": "web", "list": ONE.hex(), "first_sample": 45},
        {"dataset": "math", "list": OTHER.hex(), "first_sample": 300},
    ],
)


def own_feed() -> FeedStream:
    return feed_of(CORPORA, 2, mixture=MIXTURE, order="shuffled", seed=5, mask_borders=True)


@pytest.fixture(scope="module")
def state() -> State:
    """Of four sources, two of them in changes, one over documents; with a skip, two redactions and
    two planes of each source, within the stages.
    """
    feed = own_feed()
    deliver(feed, 20)
    feed = changed(feed, {"code": 1, "web": 1}, 60)
    deliver(feed, 10)
    feed.cursor.seek(70)
    deliver(feed, 35)
    feed = changed(feed, {"news": 2, "math": 1}, 200)
    found: State = json.loads(json.dumps(state_of(feed)))
    stream = found["stream"]
    assert [len(stream[1]), len(stream[4]), len(stream[5])] == [4, 4, 2]
    assert [found["sample"], len(found["history"]), len(found["planes"])] == [140, 2, 8]
    return found


def places(value: Any, *place: Any) -> Iterator[Place]:
    """Of each value within another one, lists and dicts too."""
    if place:
        yield place
    items: Any = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else items:
        yield from places(each, *place, key)


def at(state: Any, place: Place) -> Any:
    for key in place:
        state = state[key]
    return state


def other_digit(text: str, index: int) -> str:
    digit = "0" if text[index] != "0" else "1"
    return text[:index] + digit + text[index + 1 :]


ANY: list[Callable[[Any], Any]] = [
    lambda _: None, lambda _: "text", lambda _: 7, lambda _: 2**64, lambda _: [], lambda _: [7],
]  # fmt: skip
BY_TYPE: dict[type, list[Callable[[Any], Any]]] = {
    int: [lambda n: n + 1, lambda n: n - 1, lambda n: 2 * n + 3, str, float],
    str: [
        lambda text: other_digit(text, 0) if text else "0",
        lambda text: other_digit(text, -1) if text else "1",
        lambda text: text + "0",
        lambda text: text[:-1],
        str.upper,
    ],
    list: [lambda values: values[::-1], lambda values: [values]],
}


def edits(state: State) -> Iterator[tuple[Place, str, State]]:
    """The state with each of its values changed, removed and twice there."""
    for place in places(state):
        *parent, key = place
        value = at(state, place)
        for index, change in enumerate((*BY_TYPE[type(value)], *ANY)):
            edited = copy.deepcopy(state)
            at(edited, tuple(parent))[key] = change(value)
            yield place, f"change {index}", edited
        edited = copy.deepcopy(state)
        del at(edited, tuple(parent))[key]
        yield place, "removed", edited
        if parent:
            edited = copy.deepcopy(state)
            at(edited, tuple(parent)).insert(key, copy.deepcopy(value))
            yield place, "twice", edited


def test_an_edit_of_a_state_is_refused_by_place_or_changes_neither_stream_nor_position(
    state: State,
) -> None:
    """A slip in an editor, or a damaged file, must not become another run. Only `sample` says where
    to go on, and may be another one; a history and planes say what was, and no row depends on them.
    """
    feed = own_feed()
    accepted = load(feed, state).stream.known()
    refused = dict.fromkeys(state, 0)
    for place, what, edited in edits(state):
        key = place[0]
        found = loaded(feed, edited)
        if isinstance(found, FeedStream):
            assert found.known() == accepted, (place, what)
            assert found.cursor.sample == edited["sample"], (place, what)
            if key == "stream":
                assert state_of(found) == state, (place, what)
            continue
        refused[key] += 1
        if key == "version" or place == (key,):
            assert str(found).startswith(
                (f"state.{key}", "state: has version", f"state: lacks {key}")
            )
        elif isinstance(found, StreamMismatch):
            assert (found.subject, key) == ("planes", "planes"), (place, what)
        else:
            assert found.subject.startswith(f"state.{key}"), (place, what)

    assert feed.cursor.sample == 0
    # All of them were tried.
    assert refused["stream"] > 1000
    assert min(refused.values()) > 5


def loaded(feed: FeedStream, state: State) -> FeedStream | InvalidRequest | StreamMismatch:
    """What a feed goes on with, or why it does not."""
    try:
        return load(feed, state).stream
    except (InvalidRequest, StreamMismatch) as error:
        return error
