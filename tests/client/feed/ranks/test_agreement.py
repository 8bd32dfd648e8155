"""Ranks compare their corpora without waiting for each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from client.feed.ranks.agreement import RankAgreement, rank_agreement
from client.feed.ranks.coordinates import DataParallel
from tokenfeed.errors import StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

ONE, OTHER = bytes(range(32)), bytes(range(1, 33))
RANKS = DataParallel(0, 2, "torch.distributed", (0, 1))
FEED: dict[str, Any] = {
    "dataset": "train", "order": "shuffled-1", "seed": 5, "context_length": 8, "batch_size": 4,
}  # fmt: skip
OTHER_FEED: dict[str, Any] = {
    "dataset": "val", "order": "random-1", "seed": 0, "context_length": 9, "batch_size": 40,
}  # fmt: skip


def asked(feed: dict[str, Any]) -> StreamRequest:
    """What a feed of these arguments asks for."""
    order = orders.find(feed["order"])
    spec = StreamSpec.of_dataset(feed["dataset"], order, feed["seed"], feed["context_length"])
    return StreamRequest(spec, Position(0, feed["batch_size"]))


STORES: list[Callable[[Path], dist.Store]] = [
    lambda _: dist.HashStore(),
    lambda path: dist.FileStore(str(path / "store"), 2),
    lambda _: dist.TCPStore("localhost", 0, 1, is_master=True),
    lambda _: dist.PrefixStore("a", dist.HashStore()),
]


@pytest.mark.parametrize("make", STORES, ids=["hash", "file", "tcp", "prefix"])
def test_the_rank_with_another_corpus_is_told_with_both_names(
    tmp_path: Path, make: Callable[[Path], dist.Store]
) -> None:
    """On every kind of store that torch makes, and in whatever order the ranks come."""
    store = make(tmp_path)
    ranks = [RankAgreement(lambda: store, "key", rank) for rank in range(3)]

    ranks[2].require_same("train", ONE)
    ranks[0].require_same("train", ONE)
    ranks[2].require_same("train", ONE)
    with pytest.raises(StreamMismatch) as caught:
        ranks[1].require_same("train", OTHER)

    assert caught.value.subject == "fingerprint"
    assert f"rank 1 reads corpus {OTHER.hex()}" in caught.value.problem
    assert f"rank 2 reads {ONE.hex()}" in caught.value.problem
    assert "fingerprint=" in caught.value.problem


def test_another_feed_may_have_another_corpus() -> None:
    """Training and validation."""
    store = dist.HashStore()

    RankAgreement(lambda: store, "train", 0).require_same("train", ONE)
    RankAgreement(lambda: store, "val", 1).require_same("train", OTHER)


def test_without_a_store_the_log_says_so_and_nothing_is_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process group was destroyed before the first batch."""
    agreement = rank_agreement(RANKS, asked(FEED), "a:1")
    assert agreement is not None

    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        agreement.require_same("train", ONE)

    assert caplog.text.count("cannot compare the corpus with other ranks rank=0") == 1


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with a single process, and its store."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def keys_of(ranks: DataParallel, *feeds: dict[str, Any]) -> list[str]:
    """The keys that a process of its own would use for feeds made in that order."""
    from client.feed.ranks import agreement

    agreement._MADE.clear()
    made = [rank_agreement(ranks, asked(feed), "a:1") for feed in feeds]
    return [each._key for each in made if each is not None]


def test_feeds_made_in_the_same_order_are_the_same_feed_on_every_rank() -> None:
    """A program makes a second feed like the first, and never reads the first on some ranks."""
    feeds = FEED, FEED | {"dataset": "val"}, FEED

    keys = keys_of(RANKS, *feeds)

    assert keys == keys_of(replace(RANKS, rank=1, source="group"), *feeds)
    assert len(set(keys)) == 3


@pytest.mark.parametrize("part", FEED)
def test_feeds_that_differ_are_not_compared(part: str) -> None:
    """Each has its own corpus, seed and sizes."""
    other = FEED | {part: OTHER_FEED[part]}

    assert keys_of(RANKS, FEED) != keys_of(RANKS, other)


def test_two_groups_of_one_job_are_not_compared() -> None:
    """Each half may train on data of its own."""
    assert keys_of(RANKS, FEED) != keys_of(replace(RANKS, members=(2, 3)), FEED)


@pytest.mark.parametrize(
    "ranks",
    [
        DataParallel(0, 1, "torch.distributed", (0,)),
        DataParallel(0, 2, "arguments"),
        DataParallel(0, 2, "RANK and WORLD_SIZE"),
    ],
)
def test_without_a_process_group_of_several_there_is_nothing_to_compare(
    ranks: DataParallel,
) -> None:
    """There is no other rank, or no store to reach it."""
    assert rank_agreement(ranks, asked(FEED), "a:1") is None


@pytest.mark.usefixtures("one_process")
def test_the_store_is_the_one_of_init_process_group() -> None:
    """Whatever torch calls it in its next version."""
    ranks = [rank_agreement(replace(RANKS, rank=rank), asked(FEED), "a:1") for rank in range(2)]
    first, second = (RankAgreement(each._store, "key", each._rank) for each in ranks if each)

    first.require_same("train", ONE)
    with pytest.raises(StreamMismatch, match="rank 1 reads"):
        second.require_same("train", OTHER)


@pytest.mark.usefixtures("one_process")
def test_coordinates_given_by_hand_are_compared_among_feeds_of_the_same_servers() -> None:
    """It is unknown which ranks belong together; other servers may have another corpus."""
    by_hand = DataParallel(0, 2, "arguments")
    first, second = (
        rank_agreement(by_hand, asked(FEED), targets) for targets in (["a:1"], ["b:1"])
    )

    assert first is not None
    assert second is not None
    assert first._key != second._key
    assert first._key not in keys_of(RANKS, FEED)


def test_a_store_that_does_not_answer_holds_up_no_batch_for_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has it is stopped."""
    monkeypatch.setattr("client.feed.ranks.agreement._STORE_SECONDS", 0.2)
    over = threading.Event()

    class Stopped:
        def compare_set(self, *_: str) -> bytes:
            over.wait(60)
            return b""

    RankAgreement(Stopped, "key", 3).require_same("train", ONE)

    assert (
        "cannot compare the corpus with other ranks rank=3 reason=no answer within" in caplog.text
    )
    over.set()


def test_datasets_of_other_names_are_not_compared() -> None:
    """A feed for validation on rank 0 alone, made before the one for training."""
    store = dist.HashStore()

    RankAgreement(lambda: store, "key", 0).require_same("val", OTHER)
    RankAgreement(lambda: store, "key", 1).require_same("train", ONE)
