"""Loaders with a position of their own: where a feed has one too, it is restored once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from client import InvalidRequest, RemoteBatches
from tests.conftest import WriteTokens

T = 4

# torchdata calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture
def feed(write_tokens: WriteTokens) -> Iterator[RemoteBatches]:
    """Batches of one row, whose first tokens are 0, 4, 8 and so on."""
    with open_feed(write_tokens(range(200))) as found:
        yield found


def open_feed(path: Path) -> RemoteBatches:
    return RemoteBatches(f"file:{path}", 1, T, order="sequential")


def first_tokens(batches: Any, count: int) -> list[int]:
    return [int(x[0, 0]) for x, _ in islice(batches, count)]


def loader_of(feed: RemoteBatches, what: str) -> StatefulDataLoader:
    """A loader of a feed, or of its first epoch."""
    return StatefulDataLoader(feed.epoch(0) if what == "epoch" else feed, batch_size=None)


@pytest.mark.parametrize("restored", ["loader", "feed", "feed, loader", "loader, feed"])
@pytest.mark.parametrize("what", ["epoch", "feed"])
def test_a_stateful_loader_goes_on_once_whoever_restores_the_position(
    feed: RemoteBatches, tmp_path: Path, what: str, restored: str
) -> None:
    """Its state has the position of the feed. A loader that counts would skip those batches."""
    loader = loader_of(feed, what)
    assert first_tokens(loader, 5) == [0, 4, 8, 12, 16]
    states = {"loader": loader.state_dict(), "feed": feed.state_dict()}

    with open_feed(tmp_path / "train.bin") as other:
        again = loader_of(other, what)
        for each in restored.split(", "):
            (again if each == "loader" else other).load_state_dict(states[each])
        assert first_tokens(again, 3) == [20, 24, 28]


@pytest.mark.parametrize("what", ["epoch", "feed"])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_accelerate_may_skip_batches_or_a_state_be_loaded_and_not_both(
    feed: RemoteBatches, what: str, is_prepared: bool
) -> None:
    """As a Trainer does on resuming, unless ignore_data_skip=True."""
    batches = feed.epoch(0) if what == "epoch" else feed
    loader: Any = DataLoader(batches, batch_size=None)
    if is_prepared:
        loader = Accelerator(cpu=True).prepare(loader)
    assert first_tokens(feed, 5) == [0, 4, 8, 12, 16]
    state = feed.state_dict()

    feed.load_state_dict(state)
    problem = "ignore_data_skip: has to be True: accelerate would skip 5 batches"
    with pytest.raises(InvalidRequest, match=problem):
        first_tokens(skip_first_batches(loader, 5), 3)
    feed.load_state_dict(state)
    assert first_tokens(loader, 3) == [20, 24, 28]

    feed.load_state_dict(state | {"sample": 0, "history": [], "history_from": 0})
    next(feed)
    assert first_tokens(skip_first_batches(loader, 4), 3) == [20, 24, 28]
