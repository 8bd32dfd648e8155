"""A saved position: plain values that say which stream they belong to."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.feed.history import History
from client.feed.mixture.schedule import PlannedStage, Schedule
from client.feed.saved.comparing import differences, require_same_planes, require_same_stream
from client.feed.saved.state import read_history, read_planes, read_state, write_state
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.parts import RedactionValues, StreamParts
from tokenfeed.stream.spec import Source

PARTS = StreamParts("shuffled-1", 2**64 - 1, 2048, "ab" * 32)
STATE = write_state(2**62 + 1, PARTS)
NAMES = ("order", "seed", "context_length", "fingerprint")

HISTORY = (
    History()
    .extended(0, 24, 4, 2, PARTS)
    .extended(24, 29, 4, 2, PARTS)
    .extended(29, 32, 3, 1, StreamParts("random-1", 0, 8, "cd" * 32))
)
LIVED = write_state(32, PARTS, HISTORY)


def test_a_state_survives_json() -> None:
    """Any format of a trainer's checkpoint."""
    assert read_state(json.loads(json.dumps(STATE))) == (2**62 + 1, PARTS)


def test_a_state_says_nothing_of_ranks_and_places() -> None:
    """Every rank may load rank 0's file, on another machine and in another number."""
    assert set(STATE) == {
        "version",
        "sample",
        "order",
        "seed",
        "context_length",
        "fingerprint",
        "history_from",
        "history",
        "specs",
        "planes",
    }


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("order", "random-1"),
        ("seed", 1),
        ("context_length", 1024),
        ("fingerprint", "cd" * 32),
    ],
)
def test_what_differs_is_named_unless_it_is_allowed(
    part: str, other: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A hash alone could not say that it was the seed."""
    own = StreamParts(**{**{name: STATE[name] for name in NAMES}, part: other})

    with pytest.raises(StreamMismatch, match=str(getattr(PARTS, part))) as caught:
        require_same_stream(PARTS, own, allow=())
    assert caught.value.subject == part

    with caplog.at_level(logging.WARNING):
        require_same_stream(PARTS, own, allow=(part,))
        assert caplog.text == ""  # something else may still refuse it
    assert f"part={part} " in "".join(differences(PARTS, own))


PLANES = {("", 51): "12" * 32, ("", 50): "34" * 32}
MASKED = write_state(32, PARTS, HISTORY, PLANES)


def test_planes_that_mask_targets_come_back() -> None:
    """A state of an earlier release names none."""
    assert read_planes(json.loads(json.dumps(MASKED))) == PLANES
    assert read_state(MASKED) == read_state(LIVED)
    assert read_history(MASKED) == HISTORY
    assert LIVED["planes"] == []
    assert read_planes({key: LIVED[key] for key in LIVED if key != "planes"}) == {}


@pytest.mark.parametrize(
    ("planes", "problem"),
    [
        ("x", "planes: is str, not a list"),
        ([["", 51]], r"planes\[0\]: has 2 values, not 3"),
        ([["", 0, "12" * 32]], r"planes\[0\].kind: 0 is not in"),
        ([["", 51, "12"]], r"planes\[0\].fingerprint: '12' is not 64"),
        ([[5, 51, "12" * 32]], r"planes\[0\].dataset: 5 is not text"),
    ],
)
def test_damaged_planes_are_named(planes: Any, problem: str) -> None:
    """The place in the checkpoint is what its owner has to look at."""
    with pytest.raises(InvalidRequest, match=problem):
        read_planes(STATE | {"planes": planes})


@pytest.mark.parametrize("own", [{("", 51): "13" * 32}, {}])
def test_other_planes_are_named_unless_they_are_allowed(
    own: dict[tuple[str, int], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of a mask that was taken away, too. A feed that ignores masks has said so."""
    saved = {("", 51): "12" * 32}
    with pytest.raises(StreamMismatch, match=f"loss mask {'12' * 32}, but this stream has"):
        require_same_planes(saved, own, datasets=[""], wanted=[51], allow=("fingerprint",))
    assert caplog.text == ""

    for allow, wanted in [(("planes",), [51]), ((), [50])]:
        caplog.clear()
        require_same_planes(saved, own, datasets=[""], wanted=wanted, allow=allow)
        assert "resumed with other targets plane='loss mask'" in caplog.text
    caplog.clear()
    require_same_planes(saved, saved, datasets=[""], wanted=[51], allow=())
    require_same_planes(saved, own, datasets=["of other tokens"], wanted=[51], allow=())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "not a dict"),
        ([], "not a dict"),
        ({}, "version None"),
        (STATE | {"version": 6}, "version 6, but this client reads 1 to 5; a later release"),
        (STATE | {"version": 0}, "version 0"),
        ({name: value for name, value in STATE.items() if name != "seed"}, "lacks seed"),
        (STATE | {"sample": "12"}, "not an integer"),
        (STATE | {"sample": -1}, "not in"),
        (STATE | {"sample": 2**63 + 1}, "not in"),
        (STATE | {"context_length": 0}, r"context_length: 0 is not in"),
    ],
)
def test_what_is_no_state_is_refused_with_the_reason(state: Any, problem: str) -> None:
    """A wrong file must not become a wrong position."""
    with pytest.raises(InvalidRequest, match=problem):
        read_state(state)


@pytest.mark.parametrize("allow", ["fingerprint", ("corpus",), ("rank",)])
def test_what_cannot_be_allowed_is_refused(allow: Any) -> None:
    """A typing error there would be found on the day of the accident."""
    with pytest.raises(InvalidRequest, match="allow"):
        require_same_stream(PARTS, PARTS, allow)


def test_a_permission_is_no_part_of_a_stream() -> None:
    """It allows something, and changes no state."""
    require_same_stream(PARTS, PARTS, allow=("mid_epoch",))

    assert "mid_epoch" not in STATE
    with pytest.raises(StreamMismatch, match="context_length"):
        require_same_stream(
            PARTS,
            StreamParts("shuffled-1", 2**64 - 1, 8, "ab" * 32),
            allow=("mid_epoch",),
        )


PACKED = StreamParts("packed-1", 7, 2048, "ab" * 32, long_documents="cut", pieces="cd" * 32)


def test_a_state_of_an_order_over_documents_names_its_pieces() -> None:
    """Other borders of documents make other rows of the same tokens."""
    state = write_state(5, PACKED, History().extended(0, 5, 1, 1, PARTS))

    assert (state["version"], state["long_documents"], state["pieces"]) == (4, "cut", "cd" * 32)
    assert read_state(json.loads(json.dumps(state))) == (5, PACKED)
    assert read_history(state).runs[0].spec == PARTS
    others = replace(PACKED, pieces="ef" * 32), replace(PACKED, long_documents="drop")
    for other, part in zip(others, ("pieces", "long_documents"), strict=True):
        with pytest.raises(StreamMismatch, match=f"^{part}: the state was saved with"):
            require_same_stream(PACKED, other, ())
        require_same_stream(PACKED, other, (part,))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pieces": ""}, "state.pieces: '' is not 64"),
        ({"pieces": "cd"}, "state.pieces: "),
        ({"pieces": 5}, "state.pieces: "),
        ({"long_documents": 5}, "state.long_documents: "),
    ],
)
def test_damaged_pieces_of_a_state_are_refused(change: dict[str, Any], problem: str) -> None:
    """By their name, like everything else."""
    with pytest.raises(InvalidRequest, match=problem):
        read_state(write_state(5, PACKED) | change)


REDACTED = replace(PARTS, redactions=(RedactionValues(7, 0, "cd" * 32),))


def test_a_state_with_redactions_has_them_in_its_specs() -> None:
    """The last of which is its stream, as torch.distributed.checkpoint loads no key that the feed
    lacks which loads it; another release refuses it by its version.
    """
    history = History().extended(0, 5, 1, 1, PARTS).extended(5, 9, 1, 1, REDACTED)
    state = json.loads(json.dumps(write_state(9, REDACTED, history)))

    assert set(state) == set(STATE)
    assert state["version"] == 5
    redactions = [spec[-1] for spec in state["specs"]]
    assert redactions == [[], [[7, 0, "cd" * 32]], [[7, 0, "cd" * 32]]]
    assert read_state(state) == (9, REDACTED)
    assert read_history(state) == history
    earlier = write_state(5, PARTS, History().extended(0, 5, 1, 1, REDACTED))
    assert read_state(earlier) == (5, PARTS)


def test_redactions_of_every_kind_of_stream_come_back() -> None:
    """Of documents too, beside a stream of windows without any."""
    packed = replace(PACKED, redactions=REDACTED.redactions)
    state = json.loads(json.dumps(write_state(9, packed, History().extended(0, 5, 1, 1, PARTS))))

    assert read_state(state) == (9, packed)
    assert read_history(state).runs[0].spec == PARTS


@pytest.mark.parametrize(
    ("redactions", "problem"),
    [
        ("none", r"redactions: is str, not a list"),
        ([[1, 0]], r"redactions\[0\]: has 2 values, not 3"),
        ([[-1, 0, "cd" * 32]], r"redactions\[0\].first_sample: -1 is not in"),
        ([[1, 1, "cd" * 32]], r"redactions\[0\].source: 1 is not"),
        ([[1, 0, "cd" * 31]], r"redactions\[0\].list: .* is not 64 hexadecimal digits"),
        ([[1, 0, "cd" * 32]] * 2, r"redactions\[1\]: has to be above the one before it"),
    ],
)
def test_damaged_redactions_of_a_state_are_named(redactions: Any, problem: str) -> None:
    """The place in the checkpoint is what its owner has to look at."""
    state = write_state(9, REDACTED)
    state["specs"][-1][-1] = redactions

    with pytest.raises(InvalidRequest, match=r"state\.specs\[0\]\." + problem):
        read_state(state)
    with pytest.raises(InvalidRequest, match="is empty, but its last one is the stream"):
        read_state(state | {"specs": []})


def test_a_history_survives_json_and_pickle() -> None:
    """Sizes, streams and the padded end of an epoch."""
    assert LIVED["history"] == [[0, 0, 29, 4, 2, 0], [4, 29, 32, 3, 1, 1]]
    assert LIVED["specs"][1] == ["random-1", 0, 8, "cd" * 32]
    for loaded in (json.loads(json.dumps(LIVED)), pickle.loads(pickle.dumps(LIVED))):
        assert loaded == LIVED
        assert read_history(loaded) == HISTORY
    assert read_history(STATE) == History()


def test_a_state_of_version_1_begins_a_history(caplog: pytest.LogCaptureFixture) -> None:
    """What came before is unknown, and this is logged."""
    state = {name: STATE[name] for name in ("sample", *NAMES)} | {"version": 1}

    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        assert read_state(state) == (2**62 + 1, PARTS)
        assert read_history(state) == History()
    assert "state of version 1 has no history" in caplog.text
    assert f"is now batch 0 sample={2**62 + 1}" in caplog.text


def damaged(run: int, place: int, value: Any) -> dict[str, Any]:
    history = json.loads(json.dumps(LIVED["history"]))
    history[run][place] = value
    return LIVED | {"history": history}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (LIVED | {"history": None}, r"^state.history: is NoneType, not a list"),
        (
            LIVED | {"history": LIVED["history"][1:]},
            r"^state.history\[0\].first_batch: 4 has to be 0",
        ),
        (LIVED | {"history": LIVED["history"][::-1]}, r"^state.history\[0\].first_batch"),
        (LIVED | {"history": [], "history_from": 4}, r"^state.history: is empty, but .* batch 4"),
        (LIVED | {"history": [[0, 0, 24, 4, 2]]}, r"^state.history\[0\]: has 5 values, not 6"),
        (LIVED | {"history": [7]}, r"^state.history\[0\]: is int, not a list"),
        (LIVED | {"history_from": 1}, r"^state.history\[0\].first_batch: 0 has to be 1"),
        (LIVED | {"history_from": -1}, r"^state.history_from: -1 is not in"),
        (damaged(1, 0, 5), r"^state.history\[1\].first_batch: 5 has to be 4"),
        (damaged(0, 2, 33), r"^state.history\[1\].first_batch: 4 has to be 5"),
        (damaged(1, 2, 29), r"^state.history\[1\].end_sample: 29 is not above first_sample 29"),
        (damaged(0, 3, 0), r"^state.history\[0\].batch_size: 0 is not in"),
        (damaged(0, 4, 2**32 + 1), r"^state.history\[0\].world_size: 4294967297 is not in"),
        (damaged(1, 5, 2), r"^state.history\[1\].spec: 2 is not in \[0, 1\]"),
        (LIVED | {"specs": []}, r"^state.history\[0\].spec: 0 is not in"),
        (LIVED | {"specs": "x"}, r"^state.specs: is str, not a list"),
        (LIVED | {"specs": [["random-1", 0, 8]]}, r"^state.specs\[0\]: has 3 values, not 4"),
        (LIVED | {"specs": [[None, 0, 8, "ab" * 32]]}, r"^state.specs\[0\].order: is empty"),
        (LIVED | {"specs": [["random-1", -1, 8, "ab" * 32]]}, r"^state.specs\[0\].seed: -1"),
        (LIVED | {"specs": [["random-1", 0, 0, "ab" * 32]]}, r"^state.specs\[0\].context_length"),
        (LIVED | {"specs": [["random-1", 0, 8, "xy"]]}, r"^state.specs\[0\].fingerprint: 'xy'"),
        (LIVED | {"specs": [["random-1", 0, 8, None]]}, r"^state.specs\[0\].fingerprint"),
    ],
)
def test_a_damaged_history_is_refused_by_place(state: Any, problem: str) -> None:
    """One that names wrong rows with confidence is worse than none."""
    with pytest.raises(InvalidRequest, match=problem):
        read_history(state)


@given(
    run=st.integers(0, 1),
    place=st.integers(0, 5),
    value=st.sampled_from([-1, 2**64, 1.0, float("nan"), True, None, "1", [], {}, [1]]),
)
def test_whatever_is_no_number_of_a_run_is_refused(run: int, place: int, value: Any) -> None:
    """Each of the six is looked at."""
    with pytest.raises(InvalidRequest, match=rf"^state.history\[{run}\]"):
        read_history(damaged(run, place, value))


@pytest.mark.parametrize("name", ["history_from", "history", "specs"])
def test_a_state_without_its_history_is_refused(name: str) -> None:
    """It is version 2, and had one."""
    state = {key: value for key, value in LIVED.items() if key != name}

    with pytest.raises(InvalidRequest, match=f"lacks {name}"):
        read_state(state)


def kind_of(value: object) -> str:
    return type(value).__name__


HUGE = 10**5000
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [True, HUGE, -HUGE, DEEP, 1.5, "1", None], ids=kind_of)
@pytest.mark.parametrize("name", ["version", "sample", "seed", "context_length"])
def test_a_number_of_a_state_that_is_none_is_refused_by_its_name(name: str, value: Any) -> None:
    """Python raises errors of its own where it shows a number of 5,000 digits, or a list within
    2,000 lists.
    """
    with pytest.raises(InvalidRequest, match=name):
        read_state({**STATE, name: value})


@pytest.mark.parametrize("allow", [[[1]], [{}], HUGE, "seed", [None]], ids=kind_of)
def test_what_allow_may_hold_is_said_whatever_it_holds(allow: Any) -> None:
    """Also where Python could not compare it."""
    with pytest.raises(InvalidRequest) as caught:
        require_same_stream(PARTS, PARTS, allow=allow)

    assert caught.value.subject == "allow"


MIXED = (
    Schedule(
        2048,
        7,
        "shuffled-1",
        (
            Source("web", orders.find("shuffled-1"), 2**64 - 1, 0),
            Source("code", orders.find("random-1"), 0, 1),
        ),
        (PlannedStage(0, {"web": 70, "code": 30}), PlannedStage(2**62, {"web": 1}, 2)),
    )
    .spec()
    .parts([Corpus(b"a" * 32), Corpus(b"c" * 32)])
)
OF_MIXTURE = write_state(40, MIXED, HISTORY.extended(32, 40, 4, 2, MIXED))


def test_the_state_of_a_mixture_survives_json_and_pickle() -> None:
    """With streams of one dataset in its history."""
    for loaded in (json.loads(json.dumps(OF_MIXTURE)), pickle.loads(pickle.dumps(OF_MIXTURE))):
        assert read_state(loaded) == (40, MIXED)
        assert read_history(loaded) == HISTORY.extended(32, 40, 4, 2, MIXED)
    assert OF_MIXTURE["version"] == 3
    assert STATE["version"] == LIVED["version"] == 2


def test_a_state_after_a_mixture_keeps_it_in_its_history() -> None:
    """Even if the run goes on with one dataset."""
    history = History().extended(0, 8, 4, 2, MIXED).extended(8, 16, 4, 2, PARTS)

    state = write_state(16, PARTS, history)

    assert (state["version"], state["sources"], state["stages"]) == (3, [], [])
    assert read_state(state) == (16, PARTS)
    assert read_history(state) == history


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sources": 5}, "state.sources: is int, not a list"),
        ({"sources": [["web", "shuffled-1", 0]]}, "state.sources[0]: has 3 values, not 4"),
        ({"sources": [["web", "", 0, "ab" * 32]]}, "state.sources[0].order: is empty"),
        ({"sources": [["web", "x", -1, "ab" * 32]]}, "state.sources[0].seed: -1 is not in"),
        ({"sources": [["web", "x", 0, "ab"]]}, "state.sources[0].fingerprint: 'ab' is not 64"),
        ({"stages": [[0, [1], 0, 0]]}, "state.stages[0].weights: has 1 values, not 2"),
        ({"stages": [[0, [1, True], 0, 0]]}, "state.stages[0].weights: True is not an integer"),
        ({"stages": [[0, [1, 2**20 + 1], 0, 0]]}, "state.stages[0].weights: 1048577 is not in"),
        ({"stages": [[-1, [1, 1], 0, 0]]}, "state.stages[0].first_sample: -1 is not in"),
        ({"stages": [[0, 1]]}, "state.stages[0]: has 2 values, not 4"),
        ({"stages": [[0, [1, 1], 4, 0]]}, "state.stages[0].origin: 4 is not in"),
        ({"stages": [[0, [1, 1], 0, -1]]}, "state.stages[0].asked: -1 is not in"),
        ({"fingerprint": "ef" * 32}, f"state.fingerprint: {'ef' * 32} is not the identity of"),
        ({"seed": 8}, "state.fingerprint: "),
        ({"order": "shuffled-1"}, "state.fingerprint: "),
        ({"sources": [OF_MIXTURE["sources"][0]] * 2}, "state.sources: have a name twice: web, web"),
        ({"stages": []}, "state.stages: are no schedule: stages: are missing"),
        (
            {"stages": [[0, [0, 0], 0, 0]]},
            "state.stages: are no schedule: weight: the sum of all sources, 0",
        ),
        (
            {"stages": [[5, [1, 1], 0, 5]]},
            "state.stages: are no schedule: stages[0].first_sample: 5",
        ),
        (
            {"stages": [[0, [3, 4], 0, 0], [5, [1, 1], 0, 5]]},
            "state.stages[1].first_sample: 5 is no end of a block; the next one is 7",
        ),
        ({"specs": [["x", 0, 8, "ab" * 32]] * 3}, "state.specs[0]: has 4 values, not 6"),
    ],
)
def test_a_damaged_mixture_is_refused_by_place(changes: dict[str, Any], problem: str) -> None:
    """As a damaged history is."""
    state = OF_MIXTURE | changes
    read = read_history if "specs" in changes else read_state
    with pytest.raises(InvalidRequest) as caught:
        read(state)

    assert str(caught.value).startswith(problem)
