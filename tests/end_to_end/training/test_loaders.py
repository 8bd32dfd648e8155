"""Loaders with a position of their own: where a feed has one too, it is restored once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
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


def test_a_feed_says_how_many_batches_are_left(feed: RemoteBatches, tmp_path: Path) -> None:
    """For a loader with a length; a state that is loaded moves the beginning, and not the end."""
    path = tmp_path / "train.bin"
    assert (feed.batch_size, feed.batches_left) == (1, None)
    with RemoteBatches(f"file:{path}", 2, T, start_step=3, num_batches=5) as ending:
        assert (ending.batch_size, ending.batches_left) == (2, 5)
        next(ending)
        assert ending.batches_left == 4
        assert len(list(ending)) == 4
        assert ending.batches_left == 0


class Named(IterableDataset[Any]):
    """A user's dataset around a feed, with other names for what is in a batch."""

    def __init__(self, feed: RemoteBatches) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        return ({"x": x} for x, _ in self.feed)


class Mapped(Named):
    """One that iterates over the feed at once."""

    def __iter__(self) -> Iterator[Any]:
        return map(list, iter(self.feed))


class NamedWithState(Named):
    """One that passes on the state of its feed."""

    def state_dict(self) -> dict[str, Any]:
        return self.feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.feed.load_state_dict(state)


@pytest.mark.parametrize("kind", [Named, Mapped, NamedWithState])
def test_torchdata_may_skip_batches_or_a_state_be_loaded_and_not_both(
    feed: RemoteBatches, tmp_path: Path, kind: type[Named]
) -> None:
    """Of a dataset without a state it reads and drops as many batches as it had yielded."""
    loader = StatefulDataLoader(kind(feed), batch_size=None)
    assert len(list(islice(loader, 3))) == 3
    states = loader.state_dict(), feed.state_dict()

    with open_feed(tmp_path / "train.bin") as other:
        again = StatefulDataLoader(kind(other), batch_size=None)
        again.load_state_dict(states[0])
        next(iter(again))
        assert other.position.samples == 4
    with open_feed(tmp_path / "train.bin") as other:
        again = StatefulDataLoader(kind(other), batch_size=None)
        other.load_state_dict(states[1])
        again.load_state_dict(states[0])
        if kind is NamedWithState:
            next(iter(again))
            assert other.position.samples == 4
        else:
            with pytest.raises(InvalidRequest, match=r"^dataset: .* would skip 3 batches"):
                next(iter(again))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stateful_loader_resumes_the_rows_of_a_sampler_in_workers(
    feed: RemoteBatches, shuffle: bool
) -> None:
    """It stores the position of the sampler; the workers open connections of their own."""
    dataset = feed.as_dataset()
    ranks = {"num_replicas": 2, "rank": 1}

    def loader() -> StatefulDataLoader:
        sampler: Any = DistributedSampler(dataset, **ranks, shuffle=shuffle, seed=3)
        return StatefulDataLoader(
            dataset, 2, sampler=sampler, num_workers=2, multiprocessing_context="fork"
        )

    first = loader()
    batches = iter(first)
    assert len(list(islice(batches, 3))) == 3
    state = first.state_dict()
    rest = first_tokens(batches, 100)

    again = loader()
    again.load_state_dict(state)
    assert first_tokens(again, 100) == rest
    assert len(rest) == 10
