"""Loaders that would make other batches of a feed's are refused; those that do not are not."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from client import InvalidRequest, RemoteBatches
from tests.client.conftest import ScriptedServer
from tokenfeed.client.batches.validation import WholeDataset

Data = Callable[[RemoteBatches], IterableDataset[Any]]


class Renamed(IterableDataset[dict[str, torch.Tensor]]):
    """A feed's batches under other names, as many a trainer wants them."""

    def __init__(self, feed: IterableDataset[Any]) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for x, y in self.feed:
            yield {"input_ids": x, "labels": y}


def an_epoch(feed: RemoteBatches) -> IterableDataset[Any]:
    return feed.epoch(0)


def the_feed(feed: RemoteBatches) -> IterableDataset[Any]:
    return feed


@pytest.mark.parametrize("data", [the_feed, an_epoch, WholeDataset])
@pytest.mark.parametrize("sizes", [{}, {"batch_size": 1}, {"batch_size": 4, "drop_last": True}])
def test_a_dataloader_that_would_stack_batches_is_refused_with_the_cure(
    data: Data, sizes: dict[str, Any]
) -> None:
    """Its default is batch_size=1, and [1, B, T] trains on, or fails far from here."""
    with RemoteBatches("localhost:1", 2, 4, order="shuffled") as feed:
        with pytest.raises(InvalidRequest, match=r"^batch_size: .* has to be None"):
            iter(DataLoader(data(feed), **sizes))


def test_a_worker_of_such_a_dataloader_says_the_same() -> None:
    """The loader is mended in one go."""
    with RemoteBatches("localhost:1", 2, 4) as feed:
        # torch hands it over from the worker as text.
        with pytest.raises((RuntimeError, InvalidRequest), match=r"batch_size: .* has to be None"):
            next(iter(DataLoader(feed, num_workers=1)))


def of_module(name: str, source: str) -> Any:
    """What a module of a framework that is not installed here defines last."""
    module: dict[str, Any] = {"__name__": name}
    exec(source, module)
    return [*module.values()][-1]


@pytest.mark.parametrize(
    "collator",
    [
        of_module("transformers.data.data_collator", "def default_data_collator(rows): pass"),
        of_module(
            "transformers.trainer_utils", "class Collator:\n def __call__(self, rows): pass"
        )(),
    ],
)
@pytest.mark.parametrize("data", [the_feed, an_epoch])
def test_a_trainer_of_transformers_that_would_take_batches_for_rows_is_refused(
    data: Data, collator: Any
) -> None:
    """train_dataset=feed; it would fail in the collator, or train on 8 times the batch."""
    with RemoteBatches("localhost:1", 2, 4, order="shuffled") as feed:
        loader = DataLoader(data(feed), batch_size=8, collate_fn=collator)
        with pytest.raises(InvalidRequest, match=r"^train_dataset: .* use FeedTrainer"):
            next(iter(loader))


@pytest.mark.parametrize("data", [the_feed, an_epoch])
def test_lightning_gets_no_state_that_it_would_not_resume_from(
    scripted: ScriptedServer, data: Data
) -> None:
    """It takes a batch ahead of a feed, and restores no epoch that has ended."""
    source = "def states(loaders): return [loader.state_dict() for loader in loaders]"
    states = of_module("lightning.pytorch.utilities.combined_loader", source)
    with RemoteBatches(scripted.address, 3, 5, order="shuffled") as feed:
        next(feed)
        with pytest.raises(InvalidRequest, match=r"^train_dataloader: .*lightning\.FeedData"):
            states([data(feed)])
        # Nor by the loader of torchdata, which asks the feed in its place.
        ask = of_module("torchdata.stateful", "def ask(feed): return feed.state_dict()")
        loader = SimpleNamespace(state_dict=partial(ask, data(feed)))
        with pytest.raises(InvalidRequest, match=r"^train_dataloader: .*lightning\.FeedData"):
            states([loader])
        assert ask(data(feed))["sample"] >= 0


def test_a_feed_that_is_pickled_says_where_to_make_it() -> None:
    """As datasets do with what a generator refers to."""
    with RemoteBatches("localhost:1", 2, 4) as feed:
        with pytest.raises(InvalidRequest, match=r"^feed: cannot be pickled, for another process"):
            pickle.dumps(feed)


def test_a_dataloader_with_a_function_for_lists_of_batches_is_taken(
    scripted: ScriptedServer,
) -> None:
    """It was written for batches: here it joins two of them."""

    def join(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        return torch.cat([x for x, _ in batches])

    with RemoteBatches(scripted.address, 3, 5, num_batches=4) as feed:
        joined = [x[:, 0].tolist() for x in DataLoader(feed, batch_size=2, collate_fn=join)]

    assert joined == [list(range(6)), list(range(6, 12))]


def test_a_dataset_of_the_callers_that_reads_a_feed_may_be_stacked(
    scripted: ScriptedServer,
) -> None:
    """It may yield single rows: what it makes of the batches is its own."""

    class Rows(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for x, _ in feed:
                yield from x

    with RemoteBatches(scripted.address, 3, 5, num_batches=4) as feed:
        stacked = [x[:, 0].tolist() for x in DataLoader(Rows(), batch_size=4)]

    assert stacked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("data", [the_feed, an_epoch, Renamed])
def test_accelerate_may_not_take_every_other_batch_of_a_rank(data: Data) -> None:
    """Half of the corpus would be left out, without any error."""
    from accelerate.data_loader import IterableDatasetShard

    with RemoteBatches("localhost:1", 2, 4, order="shuffled", rank=0, world_size=2) as feed:
        shard = IterableDatasetShard(data(feed), batch_size=1, num_processes=2, process_index=0)
        with pytest.raises(InvalidRequest, match=r"^prepare: .* 2 processes"):
            next(iter(shard))


def test_accelerate_may_share_out_a_feed_that_was_made_for_it(scripted: ScriptedServer) -> None:
    """A feed of one rank on every process: who shares it out makes the ranks."""
    from accelerate.data_loader import IterableDatasetShard

    with RemoteBatches(scripted.address, 3, 5, rank=0, world_size=1, num_batches=4) as feed:
        shard = IterableDatasetShard(feed, batch_size=1, num_processes=2, process_index=1)
        found = [x[:, 0].tolist() for x, _ in shard]

    assert found == [[3, 4, 5], [9, 10, 11]]


def test_accelerate_on_a_single_process_is_no_trouble(scripted: ScriptedServer) -> None:
    """It takes every batch then."""
    from accelerate.data_loader import IterableDatasetShard

    with RemoteBatches(scripted.address, 3, 5, rank=1, world_size=2, num_batches=2) as feed:
        shard = IterableDatasetShard(feed, batch_size=1, num_processes=1, process_index=0)

        assert [x[:, 0].tolist() for x, _ in shard] == [[3, 4, 5], [9, 10, 11]]


def test_a_loop_keeps_none_of_its_function_s_locals_alive(scripted: ScriptedServer) -> None:
    """Python keeps what is asked of a frame's locals: the last logits, through the next epoch."""

    class Logits:
        pass

    with RemoteBatches(scripted.address, 3, 5, rank=0, world_size=2) as feed:
        logits = Logits()
        kept = weakref.ref(logits)
        for _ in feed:
            break
        del logits
        assert kept() is None


def test_a_trainer_that_makes_up_its_attributes_may_iterate(scripted: ScriptedServer) -> None:
    """By a __getattr__ that knows only some names."""

    class Trainer:
        def __init__(self, feed: RemoteBatches) -> None:
            self.feed = feed

        def __getattr__(self, name: str) -> object:
            raise KeyError(name)

        def train(self) -> None:
            for _ in self.feed:
                break

    with RemoteBatches(scripted.address, 3, 5, rank=0, world_size=2) as feed:
        Trainer(feed).train()
