"""A saved position: plain values that say which stream they belong to."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from timeit import timeit
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import stages as some
from tests.support.states import state_of
from tests.support.waiting import least_seconds
from tokenfeed.client.feed.history import History
from tokenfeed.client.feed.state import SHARES_MAX, STAGES_MAX, State, folded, read_state
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.schedule import first_stage, next_stage
from tokenfeed.stream.stage import Corpus, Redaction, Share, Source, Stage
from tokenfeed.stream.stream import Stream

KEYS = ("version", "sample", "stream", "history", "planes")


def source(number: int, name: str, order: str, seed: int, *lengths: int) -> Source:
    """A source whose fingerprint tells its number; with pieces at some context lengths."""
    pieces = tuple((length, bytes([16 * number + length]) * 32) for length in lengths)
    corpus = Corpus(bytes([number + 1]) * 32, pieces)
    return Source(name, orders.find(order), seed, number, corpus=corpus)


SOURCES = (
    source(0, "web", "shuffled-1", 2**64 - 1),
    source(1, "code", "packed-1", 7, 8, 16),
    source(2, "math", "random-1", 0),
)
STAGES = (
    Stage(0, 0, 8, (Share(0, 3, 0), Share(1, 2, 0)), bytes(32)),
    Stage(1, 40, 8, (Share(0, 0, 24), Share(1, 1, 16), Share(2, 2, 0)), asked=38, origin=1),
    Stage(2, 52, 16, (Share(0, 0, 24), Share(1, 1, 9), Share(2, 0, 8)), asked=52, origin=2),
)
REDACTIONS = (Redaction(7, 0, bytes([9]) * 32), Redaction(30, 1, bytes([8]) * 32))
STREAM = Stream(5, SOURCES, STAGES, REDACTIONS).known({})
"""Of packed and other rows, with a paused source, a change of weights and one of the length."""
HISTORY = History().extended(0, 24, 4, 2).extended(24, 29, 4, 2).extended(29, 56, 3, 1)
PLANES = {(0, 51): "12" * 32, (1, 50): "34" * 32}
STATE = state_of(STREAM, 56, HISTORY, PLANES)
PLAIN = Stream.of_dataset("train", orders.find("shuffled-1"), 2**64 - 1, 2048).known(
    {0: Corpus(bytes([171]) * 32)}
)


def test_a_state_survives_json_and_pickle() -> None:
    """Any format of a trainer's checkpoint; with redactions, other lengths and pieces."""
    expected = State(56, STREAM, HISTORY, PLANES)
    for loaded in (STATE, json.loads(json.dumps(STATE)), pickle.loads(pickle.dumps(STATE))):
        assert loaded == STATE
        found = read_state(loaded)
        assert found == expected
        # What no row depends on, and so no comparison.
        assert [each.dataset for each in found.stream.sources] == ["web", "code", "math"]
        assert [(each.asked, each.origin) for each in found.stream.stages] == [
            (0, 0),
            (38, 1),
            (52, 2),
        ]
        assert [each.previous for each in found.stream.stages] == [
            each.previous for each in STREAM.stages
        ]


@given(some.streams(), st.integers(0, 2**63))
def test_whatever_the_stream_its_state_gives_it_back(stream: Stream, sample: int) -> None:
    """With the identity of every sample, which servers compare."""
    stream = numbered_by_place(stream)

    found = read_state(json.loads(json.dumps(state_of(stream, sample))))

    assert (found.sample, found.stream) == (sample, stream)
    for stage in stream.stages:
        begin = stage.first_sample
        assert found.stream.identity(begin) == stream.identity(begin)


def numbered_by_place(stream: Stream) -> Stream:
    """A stream of a feed: its sources have no gap in their numbers, and it begins at sample 0."""
    place = {number: place for place, number in enumerate(stream.numbers)}
    stages = [
        replace(
            stage,
            shares=tuple(share._replace(source=place[share.source]) for share in stage.shares),
            first_sample=stage.first_sample if stage.index else 0,
            previous=bytes(32) if stage.index == 0 else b"",
        )
        for stage in stream.stages
    ]
    sources = tuple(replace(each, number=place[each.number]) for each in stream.sources)
    redactions = tuple(replace(each, source=place[each.source]) for each in stream.redactions)
    return Stream(stream.seed, sources, tuple(stages), redactions).known({})


@pytest.mark.parametrize("state", [STATE, state_of(PLAIN), state_of(PLAIN, 3, HISTORY)])
def test_a_state_has_the_same_five_keys_for_ever(state: dict[str, Any]) -> None:
    """A distributed checkpoint that lacks a key of the feed which loads it is refused by torch,
    before we are asked. It says nothing of ranks and places: any rank may load it, anywhere.
    """
    assert tuple(state) == KEYS
    assert state["version"] == 6


def leaves(value: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    """The place of each number and text."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, *place, index)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, *place, name)
    else:
        yield place


def test_everything_below_a_key_is_a_list_a_number_or_text() -> None:
    """A distributed checkpoint flattens dicts within lists, and drops those that are empty."""
    for place in leaves(STATE):
        value: Any = STATE
        for key in place:
            assert value is STATE or isinstance(value, list)
            value = value[key]
        assert type(value) in (int, str)


def test_each_state_belongs_to_its_caller() -> None:
    """Who edits one, as a checkpoint in memory may be, edits no other."""
    one, other = state_of(STREAM), state_of(STREAM)
    one["stream"][4][0][4][0][1] += 1

    assert other == state_of(STREAM)


HUGE = 10**5000
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]


def kind_of(value: object) -> str:
    return type(value).__name__


OF_A_DATASET = state_of(PLAIN, 24, HISTORY)
OF_A_MIXTURE = state_of(Stream(5, SOURCES[:2], STAGES[:1], REDACTIONS).known({}), 24)
OTHERS: dict[type, list[Any]] = {
    int: [lambda n: n + 1, lambda n: n - 1, lambda n: 0, lambda n: 2 * n + 5, lambda n: 2**63],
    str: [
        lambda text: text[:-1],
        lambda text: text[::-1],
        lambda text: "ab" * 32,
        lambda text: "sequential-1",
        lambda text: "drop",
        lambda text: "",
    ],
}


@pytest.mark.parametrize(
    "state", [STATE, OF_A_DATASET, OF_A_MIXTURE], ids=["of all kinds", "dataset", "mixture"]
)
def test_a_change_by_hand_is_refused_or_changes_no_row(state: dict[str, Any]) -> None:
    """Of any number and any text: rows that nobody asked for would come without a word."""
    accepted = read_state(state).stream
    for place in leaves(state):
        for other in OTHERS[type(_value(state, place))]:
            edited = copy.deepcopy(state)
            at = _value(edited, place[:-1])
            at[place[-1]] = other(at[place[-1]])
            with suppress(InvalidRequest):
                assert read_state(edited).stream == accepted, (place, at[place[-1]])


def _value(state: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        state = state[key]
    return state


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 7, 0, True, "6", 6.0, None, HUGE], ids=kind_of)
def test_a_state_of_another_version_is_refused_in_one_sentence(version: Any) -> None:
    """Read as if it were this one, it would be another position."""
    with pytest.raises(InvalidRequest, match=r"^state: has version .*, but this client reads 6; "):
        read_state(STATE | {"version": version})


@pytest.mark.parametrize("state", [None, [], "x", 5])
def test_what_is_no_state_is_refused(state: Any) -> None:
    """A wrong file must not become a wrong position."""
    with pytest.raises(InvalidRequest, match=r"^state: is .*, not a dict; pass what state_dict"):
        read_state(state)


@pytest.mark.parametrize("name", KEYS[1:])
def test_a_state_that_lacks_a_key_is_refused_by_its_name(name: str) -> None:
    """A part of a checkpoint is lost."""
    state = {key: value for key, value in STATE.items() if key != name}

    with pytest.raises(InvalidRequest, match=f"^state: lacks {name}$"):
        read_state(state)


def test_what_a_later_release_adds_to_a_stream_is_passed_over() -> None:
    """Its fields come behind the last one, in the same version."""
    state = STATE | {"stream": [*STATE["stream"], "later"]}

    assert read_state(state) == read_state(STATE)


def damaged(value: Any, *place: Any) -> dict[str, Any]:
    """The state with another value at a place."""
    state = copy.deepcopy(STATE)
    _value(state, place[:-1])[place[-1]] = value
    return state


S = "stream"


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (damaged(-1, "sample"), r"sample: -1 is not in \[0, "),
        (damaged(2**63 + 1, "sample"), r"sample: \d+ is not in"),
        (damaged("x", S), "stream: is str, not a list"),
        (damaged([], S), "stream: has 0 values, not 8"),
        (damaged(2**64, S, 0), "stream.seed: 18446744073709551616 is not in"),
        (damaged(5, S, 1), "stream.sources: is int, not a list"),
        (damaged([], S, 1), "stream.stream: has to have a source and a stage"),
        (damaged(["web"], S, 1, 0), r"stream.sources\[0\]: has 1 values, not 6"),
        (damaged(7, S, 1, 0, 0), r"stream.sources\[0\].dataset: 7 is not text"),
        (damaged("x-9", S, 1, 0, 1), r"stream.sources\[0\].order: 'x-9' is unknown .* upgrade"),
        (damaged(-1, S, 1, 0, 2), r"stream.sources\[0\].seed: -1 is not in"),
        (
            damaged("cut", S, 1, 0, 3),
            r"stream.sources\[0\].long_documents: is set, but shuffled-1 does not",
        ),
        (
            damaged("all", S, 1, 1, 3),
            r"stream.sources\[1\].long_documents: 'all' is not one of cut",
        ),
        (damaged("ab", S, 1, 2, 4), r"stream.sources\[2\].fingerprint: 'ab' is not 64"),
        (damaged([8], S, 1, 1, 5, 0), r"stream.sources\[1\].pieces\[0\]: has 1 values, not 2"),
        (damaged("cd", S, 1, 1, 5, 0, 1), r"stream.sources\[1\].pieces\[0\]: 'cd' is not 64"),
        (damaged(2**32, S, 2), "stream.stage: 4294967296 is not in"),
        (damaged("", S, 3), "stream.previous: '' is not 64|stream.previous: is missing"),
        (damaged([], S, 4), "stream.stream: has to have a source and a stage"),
        (damaged([0, 8], S, 4, 1), r"stream.stages\[1\]: has 2 values, not 5"),
        (damaged(9, S, 4, 0, 0), r"stream.stages\[0\].first_sample: is 9, but the first stage"),
        (damaged(0, S, 4, 1, 0), r"stream.stages: first_sample 0 is not above 0, the one before"),
        (damaged(0, S, 4, 2, 1), r"stream.stages\[2\].context_length: 0 is not in"),
        (damaged(-1, S, 4, 2, 2), r"stream.stages\[2\].asked: -1 is not in"),
        (damaged(8, S, 4, 2, 3), r"stream.stages\[2\].origin: 8 is not in"),
        (damaged([], S, 4, 0, 4), "stream.weight: the sum of all sources, 0"),
        (damaged(9, S, 4, 0, 4, 1, 0), "stream.share.source: 9 is not the number of a source"),
        (damaged(0, S, 4, 0, 4, 1, 0), "stream.stage.shares: number 0 follows 0"),
        (
            damaged(2**20 + 1, S, 4, 0, 4, 0, 1),
            r"stream.stages\[0\].shares\[0\].weight: 1048577 is",
        ),
        (
            damaged(2**63, S, 4, 0, 4, 0, 2),
            r"stream.stages\[0\].shares\[0\].base: 9223372036854775808",
        ),
        (damaged("none", S, 5), "stream.redactions: is str, not a list"),
        (damaged([1, 0], S, 5, 0), r"stream.redactions\[0\]: has 2 values, not 3"),
        (damaged(-1, S, 5, 0, 0), r"stream.redactions\[0\].first_sample: -1 is not in"),
        (damaged(3, S, 5, 0, 1), "stream.redactions.source: 3 is not the number of a source"),
        (damaged("cd", S, 5, 0, 2), r"stream.redactions\[0\].list: 'cd' is not 64"),
        (damaged(31, S, 5, 0, 0), "stream.redactions: list 08.* they must ascend, each once"),
        (damaged([[1, 0]], S, 6), r"stream.defined\[0\].weight: 0 is not in"),
        (damaged("ab" * 32, S, 7), "stream.hash: (ab){32} is not that of these values, "),
        (damaged(6, S, 0), "stream.hash: .* is not that of these values, .* or damaged"),
    ],
)
def test_a_damaged_stream_is_refused_by_place(state: dict[str, Any], problem: str) -> None:
    """The place in the checkpoint is what its owner has to look at."""
    with pytest.raises(InvalidRequest, match=rf"^state\.(?:stream\.)?{problem}"):
        read_state(state)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (damaged(None, "history"), r"history: is NoneType, not a list"),
        (damaged(7, "history", 0), r"history\[0\]: is int, not a list"),
        (damaged([0, 0, 24, 4], "history", 0), r"history\[0\]: has 4 values, not 5"),
        (damaged(5, "history", 1, 0), r"history\[1\].first_batch: 5 has to be 4"),
        (damaged(33, "history", 0, 2), r"history\[1\].first_batch: 4 has to be 5"),
        (damaged(29, "history", 1, 2), r"history\[1\].end_sample: 29 is not above .* 29"),
        (damaged(0, "history", 0, 3), r"history\[0\].batch_size: 0 is not in"),
        (damaged(2**32 + 1, "history", 0, 4), r"history\[0\].world_size: 4294967297 is not in"),
        (damaged(STATE["history"][::-1], "history"), r"history\[0\].first_batch: 4 has to be 0"),
    ],
)
def test_a_damaged_history_is_refused_by_place(state: dict[str, Any], problem: str) -> None:
    """One that names wrong rows with confidence is worse than none."""
    with pytest.raises(InvalidRequest, match=rf"^state\.{problem}"):
        read_state(state)


@pytest.mark.parametrize(
    ("planes", "problem"),
    [
        ("x", "planes: is str, not a list"),
        ([[0, 51]], r"planes\[0\]: has 2 values, not 3"),
        ([[0, 0, "12" * 32]], r"planes\[0\].kind: 0 is not in"),
        ([[0, 51, "12"]], r"planes\[0\].fingerprint: '12' is not 64"),
        ([["", 51, "12" * 32]], r"planes\[0\].source: '' is not an integer"),
        ([[3, 51, "12" * 32]], r"planes\[0\].source: 3 is not in"),
    ],
)
def test_damaged_planes_are_named(planes: Any, problem: str) -> None:
    """Other targets would be learned."""
    with pytest.raises(InvalidRequest, match=rf"^state\.{problem}"):
        read_state(STATE | {"planes": planes})


NUMBERS = [place for place in leaves(STATE) if isinstance(_value(STATE, place), int)]


@pytest.mark.parametrize(
    "value",
    [True, HUGE, -HUGE, -1, DEEP, 1.0, float("nan"), "1", None, {}, [1]],
    ids=kind_of,
)
def test_whatever_is_no_number_where_one_belongs_is_refused(value: Any) -> None:
    """Python raises errors of its own where it shows a number of 5,000 digits, or a list within
    2,000 lists.
    """
    for place in NUMBERS:
        with pytest.raises(InvalidRequest, match=r"^state"):
            read_state(damaged(value, *place))


def long_stream(source_count: int, stage_count: int) -> Stream:
    """A mixture whose weights change at every block."""
    first = source(0, "0", "random-1", 1)
    sources = [replace(first, dataset=str(n), number=n) for n in range(source_count)]
    stages = [first_stage(8, {0: 1})]
    for n in range(stage_count - 1):
        weights = {number: 1 + (number + n) % 3 for number in range(source_count)}
        stages.append(next_stage(stages[-1], stages[-1].first_sample + 1, weights))
    return Stream(3, tuple(sources), tuple(stages)).known({})


@pytest.mark.parametrize(
    ("source_count", "stage_count"),
    [(1, STAGES_MAX), (1, STAGES_MAX + 9), (3, STAGES_MAX + 9), (100, 39), (100, 60), (5000, 3)],
)
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_of_a_long_stream_the_newest_stages_are_kept_and_give_the_same_rows(
    source_count: int, stage_count: int, progress: float
) -> None:
    """A state must not grow without end; an identity stands for the stages that are gone, and the
    present one and all that follow are always there.
    """
    stream = long_stream(source_count, stage_count)
    sample = int(progress * stream.stages[-1].first_sample)

    kept = folded(stream, sample)

    assert stream.stages[-len(kept.stages) :] == kept.stages
    assert kept.stages[0].first_sample <= sample
    for each in (sample, 2**62):
        assert kept.identity(each) == stream.identity(each)
        assert kept.at(each) == stream.at(each)
    place = stream.place_of(sample)
    if len(kept.stages) > len(stream.stages) - place:
        assert len(kept.stages) <= STAGES_MAX
        assert sum(len(stage.shares) for stage in kept.stages) <= SHARES_MAX
    if len(kept.stages) < len(stream.stages):
        more = stream.stages[-len(kept.stages) - 1 :]
        assert len(more) > STAGES_MAX or sum(len(stage.shares) for stage in more) > SHARES_MAX
    assert read_state(state_of(kept, sample)).stream == kept


def test_a_long_state_is_small_and_quick_to_read() -> None:
    """It is loaded by each of a thousand ranks at once."""
    stages = [first_stage(8, {0: 1, 1: 1})]
    for n in range(STAGES_MAX + 300):
        stages.append(next_stage(stages[-1], stages[-1].first_sample + 1, {n % 2: 1, 1 - n % 2: 2}))
    sources = SOURCES[0], replace(SOURCES[2], number=1)
    stream = folded(Stream(3, sources, tuple(stages)).known({}), stages[-1].first_sample)
    history = History()
    for n in range(1500):
        history = history.extended(2**62 + 20 * n, 2**62 + 20 * n + 4, 4, 1)
    state = state_of(stream, 2**62 + 30_000, history, PLANES)

    text = json.dumps(state)

    assert (len(stream.stages), len(state["history"])) == (STAGES_MAX, 1000)
    assert len(text) < 200_000
    assert read_state(json.loads(text)).stream == stream
    assert least_seconds(lambda: timeit(lambda: read_state(json.loads(text)), number=1), 1.0) < 1.0
