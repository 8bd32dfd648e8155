"""Recorded states with changes at random: refused by name, or the rows of the sample that is named.

The hash of a stream finds every change of it, so half of the mutants get the hash of what they are.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from client import NumpyBatches, TokenfeedError
from tests.conftest import ROOT
from tests.recordings.corpora import target, write_corpora
from tests.recordings.states import opened

RECORDED = json.loads((ROOT / "tests/recordings/0.1.0/states.json").read_text())
SECONDS, MUTANTS = 20.0, 200
ALONE = {"rank": 0, "world_size": 1}
EXTREMES = [-1, 0, 1, 2, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, True, None, 0.5, "", "x", [], {}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A target."""
    return target(write_corpora(tmp_path_factory.mktemp("corpora")))


def places(value: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    """Of each value within another one."""
    if place:
        yield place
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield from places(each, *place, key)


def mutated(state: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The state with one to three changes."""
    found = copy.deepcopy(state)
    for _ in range(chance.choice([1, 1, 2, 3])):
        *path, key = chance.choice([*places(found)])
        holder: Any = found
        for each in path:
            holder = holder[each]
        value = holder[key]
        match chance.randrange(5):
            case 0:
                holder[key] = chance.choice(EXTREMES)
            case 1 if isinstance(value, int):
                holder[key] = value + chance.choice([-1, 1, 7, 1000])
            case 1 if isinstance(value, str) and value:
                at = chance.randrange(len(value))
                holder[key] = value[:at] + chance.choice("0f-z") + value[at + 1 :]
            case 2 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(value))
            case 3:
                del holder[key]
            case _:
                if isinstance(value, list):
                    chance.shuffle(value)
    if chance.random() < 0.5:
        hash_again(found)
    return found


def hash_again(state: dict[str, Any]) -> None:
    """Write the hash of the stream as it is."""
    stream = state.get("stream")
    if isinstance(stream, list) and len(stream) > 7:
        stream[7] = hashlib.sha256(json.dumps(stream[:7]).encode()).hexdigest()


def shape(state: dict[str, Any]) -> list[Any]:
    """What of the stream makes rows: stages without why they are there, and redactions."""
    # Behind the last element, which is a hash, later versions write more.
    _, _, index, _, stages, redactions = state["stream"][:6]
    return [index, [[first, length, shares] for first, length, _, _, shares in stages], redactions]


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, each in RECORDED.items() if not each["allow"]])
def test_a_mutated_state_is_refused_by_name_or_goes_on_with_the_rows_of_its_sample(
    name: str, files: str
) -> None:
    """A damaged checkpoint must not train on rows of another sample, or wait for ever."""
    chance = random.Random(name)
    record = RECORDED[name]
    taken = refused = 0
    for _ in range(MUTANTS):
        state = mutated(record["state"], chance)
        began = time.monotonic()
        try:
            with opened(NumpyBatches, files, record["arguments"] | ALONE) as feed:
                feed.load_state_dict(state)
                rows = [each.tolist() for each in next(feed)]
        except TokenfeedError:
            refused += 1
        except StopIteration:
            assert state["sample"] > 2**62
        else:
            taken += 1
            if shape(state) == shape(record["state"]):
                assert rows == rows_at(files, record, state["sample"]), state
        assert time.monotonic() - began < SECONDS, state
    assert refused > MUTANTS // 5
    assert taken


def test_weights_of_a_source_that_the_state_does_not_have_are_refused_by_name(files: str) -> None:
    """Those that the definition had before the first stage that is kept."""
    record = RECORDED["a mixture of which stages were left out"]
    state = copy.deepcopy(record["state"])
    state["stream"][6] = [[9, 1]]
    hash_again(state)

    with opened(NumpyBatches, files, record["arguments"]) as feed, pytest.raises(TokenfeedError):
        feed.load_state_dict(state)


def rows_at(files: str, record: dict[str, Any], sample: int) -> list[Any]:
    """What comes at a sample of a recorded stream, without a state if the stream began so."""
    arguments, (stages, redactions) = record["arguments"] | ALONE, record["state"]["stream"][4:6]
    is_plain = len(stages) == 1 and not redactions
    if is_plain:
        arguments["start_sample"] = sample
    with opened(NumpyBatches, files, arguments) as feed:
        if not is_plain:
            feed.load_state_dict(record["state"] | {"sample": sample})
        return [each.tolist() for each in next(feed)]
