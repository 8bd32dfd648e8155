"""Ranks compare their corpora without waiting for each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from client import Mixture
from tests.support.waiting import eventually
from tokenfeed.client.feed.mixture.recipe import Definition
from tokenfeed.client.feed.ranks.agreement import RankAgreement, rank_agreement
from tokenfeed.client.feed.ranks.coordinates import DataParallel
from tokenfeed.errors import StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

ONE, OTHER = bytes(range(32)), bytes(range(1, 33))
RANKS = DataParallel(0, 2, "torch.distributed", (0, 1))
FEED: dict[str, Any] = {
    "dataset": "train", "order": "shuffled-1", "seed": 5, "context_length": 8, "batch_size": 4,
}  # fmt: skip
OTHER_FEED: dict[str, Any] = {
    "dataset": "val", "order": "sequential-1", "seed": 0, "context_length": 9, "batch_size": 40,
}  # fmt: skip


def stream_of(feed: dict[str, Any], corpus: bytes = ONE) -> Stream:
    """What a feed of these arguments reads."""
    order = orders.find(feed["order"])
    blocks = feed.get("group_tokens", 0) // 2**19
    stream = Stream.of_dataset(
        feed["dataset"], order, feed["seed"], feed["context_length"], group_blocks=blocks
    )
    return stream.known({0: Corpus(corpus)})


def asked(feed: dict[str, Any]) -> Request:
    """What a feed of these arguments asks for."""
    return Request(stream_of(feed), Position(0, feed["batch_size"]))


def definition_of(stream: Stream, *, is_mixture: bool = False) -> Definition:
    return Definition(stream, "shuffled-1", "", is_mixture=is_mixture)


def compare(rank: RankAgreement, corpus: bytes = ONE, planes: str = "", **feed: Any) -> None:
    """Compare a feed over one dataset."""
    stream = stream_of(FEED | feed, corpus)
    rank.require_same(definition_of(stream), stream, planes)


def compare_mixture(rank: RankAgreement, mixture: Mixture, seed: int = 3, length: int = 8) -> None:
    """Compare a feed of a mixture, whose corpora are told by their names."""
    definition = mixture.definition(length, "shuffled-1", seed)
    sources = definition.stream.sources
    corpora = {each.number: Corpus(each.dataset.encode().ljust(32)) for each in sources}
    rank.require_same(definition, definition.stream.known(corpora), "")


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

    compare(ranks[2])
    compare(ranks[0])
    compare(ranks[2])
    with pytest.raises(StreamMismatch) as caught:
        compare(ranks[1], OTHER)

    assert caught.value.subject == "fingerprint"
    assert f"rank 1 reads corpus {OTHER.hex()}" in caught.value.problem
    assert f"rank 2 reads {ONE.hex()}" in caught.value.problem
    assert "fingerprint=" in caught.value.problem


def test_another_feed_may_have_another_corpus() -> None:
    """Training and validation."""
    store = dist.HashStore()

    compare(RankAgreement(lambda: store, "train", 0))
    compare(RankAgreement(lambda: store, "val", 1), OTHER)


def test_without_a_store_the_log_says_so_and_nothing_is_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process group was destroyed before the first batch."""
    agreement = rank_agreement(RANKS, asked(FEED), "a:1", None)
    assert agreement is not None

    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        compare(agreement)

    assert caplog.text.count("cannot compare the corpus with other ranks rank=0") == 1


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with a single process, and its store."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def keys_of(ranks: DataParallel, *feeds: dict[str, Any]) -> list[str]:
    """The keys that a process of its own would use for feeds made in that order."""
    from tokenfeed.client.feed.ranks import agreement

    agreement._MADE.clear()
    made = [rank_agreement(ranks, asked(feed), "a:1", None) for feed in feeds]
    return [each._key for each in made if each is not None]


def test_feeds_made_in_the_same_order_are_the_same_feed_on_every_rank() -> None:
    """A program makes a second feed like the first, and never reads the first on some ranks."""
    feeds = FEED, FEED | {"dataset": "val"}, FEED

    keys = keys_of(RANKS, *feeds)

    assert keys == keys_of(replace(RANKS, rank=1, source="group"), *feeds)
    assert len(set(keys)) == 3


@pytest.mark.parametrize("part", [part for part in FEED if part != "batch_size"])
def test_feeds_that_differ_in_what_they_read_meet(part: str) -> None:
    """Were it a part of the key, two ranks that read different rows would never compare."""
    other = FEED | {part: OTHER_FEED[part]}

    assert keys_of(RANKS, FEED) == keys_of(RANKS, other)


def test_feeds_of_different_batch_sizes_are_not_compared() -> None:
    """Training and validation, which some ranks may not do."""
    assert keys_of(RANKS, FEED) != keys_of(RANKS, FEED | {"batch_size": 40})


@pytest.mark.parametrize("part", ["order", "seed", "context_length"])
def test_ranks_of_other_arguments_are_refused_by_their_name(part: str) -> None:
    """A script that passes seed=rank would train on other rows than it says."""
    store = dist.HashStore()
    first, second = (RankAgreement(lambda: store, "key", rank) for rank in range(2))
    mine, others = FEED[part], OTHER_FEED[part]

    compare(first)
    with pytest.raises(StreamMismatch) as caught:
        compare(second, **{part: others})

    assert caught.value.subject == part
    assert f"rank 1 has '{others}', and rank 0 has '{mine}'" in caught.value.problem
    assert f"Give all ranks the same {part}" in caught.value.problem


def test_ranks_with_other_groups_of_blocks_are_refused() -> None:
    """By the argument that a user can change."""
    store = dist.HashStore()
    ranks = [RankAgreement(lambda: store, "key", rank) for rank in range(3)]

    compare(ranks[0], order="blocks-1", group_tokens=2**24)
    compare(ranks[1], order="blocks-1", group_tokens=2**24)
    with pytest.raises(StreamMismatch, match="group_tokens: rank 2 has '33554432', and rank 0 has"):
        compare(ranks[2], order="blocks-1", group_tokens=2**25)


def test_ranks_with_other_planes_are_refused() -> None:
    """Other loss masks train other targets on the same tokens."""
    store = dist.HashStore()
    first, second = (RankAgreement(lambda: store, "key", rank) for rank in range(2))

    compare(first, planes="ab")
    with pytest.raises(StreamMismatch, match="planes: of rank 1 are not those of rank 0"):
        compare(second, planes="cd")


def test_ranks_that_name_a_dataset_differently_read_the_same_corpus() -> None:
    """Each may have its own server, with names of its own."""
    store = dist.HashStore()
    first, second = (RankAgreement(lambda: store, "key", rank) for rank in range(2))

    compare(first, dataset="train")
    compare(second, dataset="c4")


WEIGHTS = {"web": 6, "code": 2, "math": 2}
MIXTURE = Mixture(WEIGHTS)
REDACTION = {"dataset": "web", "list": "ab" * 32, "first_sample": 5}


@pytest.mark.parametrize(
    "other",
    [
        {"mixture": Mixture({"web": 7, "code": 2, "math": 1})},
        {"mixture": Mixture({"web": 6, "code": 4})},
        {"mixture": Mixture({"web": 6, "code": 2, "news": 2})},
        {
            "mixture": Mixture(
                stages=[{"weights": WEIGHTS}, {"first_sample": 9, "weights": WEIGHTS}]
            )
        },
        {"mixture": Mixture(WEIGHTS, sources={"math": {"max_epochs": 1}})},
        {"mixture": Mixture(WEIGHTS, sources={"math": {"seed": 8}})},
        {"mixture": Mixture(WEIGHTS, order="sequential")},
        {"mixture": Mixture(WEIGHTS, redactions=[REDACTION])},
        {"seed": 4},
        {"length": 9},
    ],
    ids=["weights", "fewer", "corpus", "stages", "epochs", "own", "order", "list", "seed", "T"],
)
def test_ranks_of_other_mixtures_are_refused(other: dict[str, Any]) -> None:
    """Weights 6/2/2 on one rank and 7/2/1 on another are two mixtures in one run."""
    store = dist.HashStore()
    ranks = [RankAgreement(lambda: store, "key", rank) for rank in range(3)]

    compare_mixture(ranks[0], MIXTURE)
    compare_mixture(ranks[1], MIXTURE)
    with pytest.raises(StreamMismatch, match="mixture: of rank 2 is not that of rank 0"):
        compare_mixture(ranks[2], **({"mixture": MIXTURE} | other))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_rank_of_a_mixture_and_one_of_a_dataset_are_refused(is_first: bool) -> None:
    """Whichever comes first, each says so."""
    store = dist.HashStore()
    ranks = [RankAgreement(lambda: store, "key", rank) for rank in range(2)]
    mixture, dataset = ranks if is_first else reversed(ranks)

    def both() -> None:
        compare_mixture(mixture, MIXTURE)
        compare(dataset)

    with pytest.raises(StreamMismatch, match="mixture: of rank"):
        both()


class Peers:
    """Two ranks, of which the first one has a tensor-parallel peer.  agreed: changes that any of
    them has made.
    """

    def __init__(self) -> None:
        self.store, self.agreed = dist.HashStore(), list[str]()
        self.first, self.peer, self.second = (
            RankAgreement(lambda: self.store, "key", rank, 2) for rank in (0, 0, 1)
        )

    def change(self, rank: RankAgreement, value: str) -> None:
        agreed = partial(self.agreed.append, value)
        rank.await_all_ranks("mixture", value, agreed, lambda: False)


@pytest.mark.parametrize("others", ["B", None])
def test_peers_of_a_rank_do_not_decide_for_the_other_ranks(others: str | None) -> None:
    """Two calls of it are not those of two ranks."""
    all_of = Peers()
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(all_of.change, each, "A") for each in (all_of.first, all_of.peer)]
        assert eventually(lambda: all_of.store.add("key/all/0/count/0", 0) == 2)
        if others is None:
            all_of.second.refuse("it is too late")
        else:
            with pytest.raises(StreamMismatch, match="rank 1 changes it to another one"):
                all_of.change(all_of.second, others)
        for call in calls:
            with pytest.raises(StreamMismatch, match="nothing is changed"):
                call.result()
    assert all_of.agreed == []


def test_a_peer_of_a_rank_that_asks_for_another_change_does_not_make_it() -> None:
    """After all ranks have agreed."""
    all_of = Peers()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(all_of.change, all_of.first, "A")
        all_of.change(all_of.second, "A")
        call.result()
    with pytest.raises(StreamMismatch, match="rank 0 changes it to another one"):
        all_of.change(all_of.peer, "B")
    assert all_of.agreed == ["A", "A"]


def test_ranks_that_load_other_states_are_refused() -> None:
    """Of another sample, or whose stream goes on differently behind it."""
    store = dist.HashStore()
    ranks = [RankAgreement(lambda: store, "key", rank) for rank in range(3)]

    for rank in ranks[:2]:
        rank.require_same_state(0, 40, "ab")
    for sample, identity in ((44, "ab"), (40, "cd")):
        with pytest.raises(StreamMismatch, match=f"state: of rank 2, at sample {sample}, is not"):
            ranks[2].require_same_state(0, sample, identity)
    ranks[2].require_same_state(1, 44, "ab")


def test_feeds_that_require_different_corpora_are_not_compared() -> None:
    """As with shard-{rank}.bin: who names each fingerprint knows that they differ."""
    keys = set()
    for required in (None, ONE.hex(), OTHER.hex()):
        agreement = rank_agreement(RANKS, asked(FEED), "a:1", required)
        assert agreement is not None
        keys.add(agreement._key)

    assert len(keys) == 3


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
    assert rank_agreement(ranks, asked(FEED), "a:1", None) is None


@pytest.mark.usefixtures("one_process")
def test_the_store_is_the_one_of_init_process_group() -> None:
    """Whatever torch calls it in its next version."""
    ranks = [
        rank_agreement(replace(RANKS, rank=rank), asked(FEED), "a:1", None) for rank in range(2)
    ]
    first, second = (RankAgreement(each._store, "key", each._rank) for each in ranks if each)

    compare(first)
    with pytest.raises(StreamMismatch, match="rank 1 reads"):
        compare(second, OTHER)


@pytest.mark.usefixtures("one_process")
def test_coordinates_given_by_hand_are_compared_among_feeds_of_the_same_servers() -> None:
    """It is unknown which ranks belong together; other servers may have another corpus."""
    by_hand = DataParallel(0, 2, "arguments")
    first, second = (
        rank_agreement(by_hand, asked(FEED), targets, None) for targets in (["a:1"], ["b:1"])
    )

    assert first is not None
    assert second is not None
    assert first._key != second._key
    assert first._key not in keys_of(RANKS, FEED)


def test_a_store_that_does_not_answer_holds_up_no_batch_for_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has it is stopped."""
    monkeypatch.setattr("tokenfeed.client.feed.ranks.agreement._STORE_SECONDS", 0.2)
    over = threading.Event()

    class Stopped:
        def compare_set(self, *_: str) -> bytes:
            over.wait(60)
            return b""

    compare(RankAgreement(Stopped, "key", 3))

    assert (
        "cannot compare the corpus with other ranks rank=3 reason=no answer within" in caplog.text
    )
    over.set()
