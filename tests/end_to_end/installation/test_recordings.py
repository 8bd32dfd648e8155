"""What earlier versions have written and sent, read by this one: states of every kind of feed, and
the bytes of requests and answers.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from client import NumpyBatches, RemoteBatches
from tests.conftest import ROOT, serving
from tests.recordings.checkpoints import CASE, FOLDER, PLACES
from tests.recordings.corpora import LIST, T, list_of, target, words, write_corpora
from tests.recordings.exchange import Call, asked, comparable, read, replaying
from tests.recordings.states import CASES, Record, replayed
from tokenfeed import __version__
from tokenfeed.client.feed.state import read_state
from tokenfeed.tools.provenance.checkpoint import CheckpointState, read_states

FOLDERS = sorted(path.parent for path in (ROOT / "tests" / "recordings").glob("*/states.json"))
STATES: dict[str, dict[str, Any]] = {
    f"{folder.name}, {case}": each
    for folder in FOLDERS
    for case, each in json.loads((folder / "states.json").read_text()).items()
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def address(
    files: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as serve:
        yield serve(*words(files)).address


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def exchange(request: pytest.FixtureRequest) -> tuple[str, list[Call]]:
    """The hash of the rows that a client made of an exchange, and the exchange."""
    found = json.loads((request.param / "exchange.json").read_text())
    return found["rows"], [Call.of(call) for call in found["calls"]]


def test_this_version_is_recorded_too() -> None:
    """Else the next one would have nothing to read: python -m tests.recordings."""
    assert __version__ in [folder.name for folder in FOLDERS]
    assert {name.partition(", ")[2] for name in STATES if name.startswith(__version__)} == {*CASES}


@pytest.mark.parametrize("make", [NumpyBatches, RemoteBatches])
@pytest.mark.parametrize("name", STATES)
def test_a_recorded_state_goes_on_with_the_rows_that_it_went_on_with(
    name: str, make: type[Any], files: dict[str, list[Path]], address: str
) -> None:
    """A run of weeks is not bound to the version that it began with, nor is its history. Arrays are
    read from a server, tensors from files.
    """
    record = Record(**STATES[name])

    assert replayed(make, address if make is NumpyBatches else target(files), record) == record


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_state_in_a_recorded_checkpoint_is_found(folder: Path, name: str) -> None:
    """`tokenfeed explain` reads what trainers of any age saved, by the torch of their time."""
    state = json.loads((folder / "states.json").read_text())[CASE]["state"]

    found = read_states(folder / FOLDER / name)

    assert found == [CheckpointState(PLACES[name], read_state(state))]


def test_a_recorded_request_is_answered_by_the_recorded_bytes(
    exchange: tuple[str, list[Call]], address: str
) -> None:
    """So old clients read from new servers. What may differ is MAY_DIFFER."""
    _, calls = exchange
    with grpc.insecure_channel(address) as channel:
        for rpc, request, answers in calls:
            found = asked(channel, rpc, request)
            assert comparable(rpc, found) == comparable(rpc, answers), rpc
    assert {call.rpc for call in calls} == {"Describe", "GetBatch", "GetRows"}


def test_recorded_answers_are_read_as_they_were(
    exchange: tuple[str, list[Call]], caplog: pytest.LogCaptureFixture
) -> None:
    """So new clients read from old servers, which know no other requests."""
    rows, calls = exchange
    caplog.set_level(logging.ERROR)

    with replaying(calls) as address:
        assert read(address) == rows


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_recorded_list_of_redactions_is_read(folder: Path, tmp_path: Path) -> None:
    """It is no cache that can be made again: what was erased by it is gone."""
    files = write_corpora(tmp_path)
    own = target({"web": files["web"]})

    def rows() -> list[Any]:
        with NumpyBatches(own, 50, T, redactions=LIST, num_batches=3) as feed:
            return [(x.tolist(), y.tolist()) for x, y in feed]

    expected = rows()
    shutil.copyfile(folder / "redactions.jsonl", list_of(files))
    assert rows() == expected
    assert any(-100 in row for _, y in expected for row in y)
