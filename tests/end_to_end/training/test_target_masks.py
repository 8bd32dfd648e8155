"""Targets that do not count have y = -100: by loss masks, and by borders of documents.

Expected values come from the arrays, token by token, and places of rows from the second
implementation.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from client import (
    InvalidRequest,
    Mixture,
    RemoteBatches,
    StreamMismatch,
    Unreachable,
    validation_feeds,
)
from tests.client.conftest import wanted
from tests.client.device.simulated_device import Device
from tests.server.rpc.test_service import serving
from tests.support import reference
from tests.support.masked_mixtures import MaskedMixtures
from tests.support.memory_store import MemoryStore
from tests.support.targets import starts_plane, targets
from tests.support.waiting import eventually
from tokenfeed.client.device.numpy_batch import Note
from tokenfeed.client.device.transfer import DirectTransfer, PinnedTransfer
from tokenfeed.client.feed.mixture.recipe import Definition
from tokenfeed.client.feed.ranks.agreement import RankAgreement
from tokenfeed.client.feed.state import read_state
from tokenfeed.client.source.datasets import Agreement
from tokenfeed.client.source.files import Files
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, dataset_of
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.tools.__main__ import main
from tokenfeed.wire.row_block import Plane

B, T = 5, 11
ALONE = {"rank": 0, "world_size": 1}


@dataclass(frozen=True)
class Corpus:
    """Tokens of each file, which of them count (None: no mask), and where documents begin."""

    tokens: list[np.ndarray]
    masks: list[list[int]] | None
    starts: list[list[int]] | None

    def dataset(self, name: str = "train") -> Dataset:
        return dataset_of(MemoryStore(name, self.tokens, self.masks, self.starts), TokenChecks())

    def row(self, file: int, first: int, length: int, borders: bool) -> tuple[list, list]:
        """x and y of the window from a token of a file on."""
        tokens = self.tokens[file][first : first + length + 1].tolist()
        mask = None if self.masks is None else self.masks[file][first : first + length + 1]
        known = self.starts[file] if borders and self.starts is not None else []
        return tokens[:-1], targets(tokens, mask, [one - first for one in known])


def corpus_of(seed: int, sizes: Sequence[int] = (400, 300), dtype: str = "<u2") -> Corpus:
    """Any tokens, masks in runs of some tokens, and documents of about 8 tokens."""
    numbers = np.random.default_rng(seed)
    masks = [np.repeat(numbers.integers(0, 2, size), 3)[:size].tolist() for size in sizes]
    starts = [np.flatnonzero(numbers.random(size) < 0.12).tolist() for size in sizes]
    tokens = [numbers.integers(seed * 9000, seed * 9000 + 9000, size, dtype) for size in sizes]
    return Corpus(tokens, masks, starts)


CORPUS = corpus_of(3)
PLAIN = replace(CORPUS, masks=None, starts=None)


@contextmanager
def served(*corpora: Corpus) -> Iterator[list[str]]:
    """Serve corpora, each by a server of its own.  Returns: their addresses."""
    with ExitStack() as servers:
        yield [
            servers.enter_context(serving({"train": corpus.dataset()})).address
            for corpus in corpora
        ]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(CORPUS) as (one,):
        yield one


def expected(
    corpus: Corpus,
    order: str,
    samples: Sequence[int],
    *,
    seed: int = 7,
    length: int = T,
    masked: bool = True,
    borders: bool = False,
) -> tuple[list, list]:
    """x and y of samples."""
    corpus = corpus if masked else replace(corpus, masks=None)
    sizes = [tokens.size for tokens in corpus.tokens]
    places = [reference.window(order, seed, sizes, length, sample) for sample in samples]
    rows = [corpus.row(file, first, length, borders) for file, first in places]
    return [x for x, _ in rows], [y for _, y in rows]


def delivered(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list, list]:
    found = list(batches)
    return torch.cat([x for x, _ in found]).tolist(), torch.cat([y for _, y in found]).tolist()


def has_ignored(found: tuple[list, list]) -> bool:
    return any(-100 in row for row in found[1])


OPTIONS = [
    {},
    {"mask_borders": True},
    {"loss_mask": "ignore"},
    {"loss_mask": "ignore", "mask_borders": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
@pytest.mark.parametrize("x_dtype", [torch.int64, torch.int32])
def test_y_is_ignored_where_a_token_does_not_count_on_every_rank(
    address: str, options: dict[str, Any], order: str, x_dtype: torch.dtype
) -> None:
    """One wrong target in a thousand is seen by no loss curve."""
    for world_size in (1, 3):
        steps = 90 // (world_size * B)
        ranks = []
        for rank in range(world_size):
            with RemoteBatches(
                address,
                B,
                T,
                order=order,
                seed=7,
                x_dtype=x_dtype,
                num_batches=steps,
                rank=rank,
                world_size=world_size,
                **options,
            ) as feed:
                ranks.append(list(feed))
        found = delivered(itertools.chain.from_iterable(zip(*ranks, strict=True)))

        assert found == expected(
            CORPUS,
            f"{order}-1",
            range(steps * world_size * B),
            masked=options.get("loss_mask") != "ignore",
            borders=options.get("mask_borders", False),
        )
        assert has_ignored(found) == (options != {"loss_mask": "ignore"})


def test_a_corpus_without_planes_ignores_no_target() -> None:
    """The default asks for a mask where there is one, and for nothing else."""
    with served(PLAIN) as (address,), RemoteBatches(address, B, T, seed=7, **ALONE) as feed:
        found = delivered(itertools.islice(feed, 30))

    assert found == expected(PLAIN, "shuffled-1", range(30 * B))
    assert not has_ignored(found)


def test_a_mask_is_known_where_documents_are_not_and_the_reverse() -> None:
    """Each plane comes by itself."""
    alone = replace(CORPUS, starts=None), replace(CORPUS, masks=None)
    with served(*alone) as addresses:
        for address, corpus, borders in zip(addresses, alone, (False, True), strict=True):
            with RemoteBatches(address, B, T, seed=7, mask_borders=borders, **ALONE) as feed:
                found = delivered(itertools.islice(feed, 20))

            assert found == expected(corpus, "shuffled-1", range(20 * B), borders=borders)


def test_batches_may_span_frames_and_frames_batches() -> None:
    """A row's planes stay with its tokens, however the rows are cut."""
    corpus = corpus_of(5, (60_000, 50_000), "<u4")
    for batch_size, length in ((48, 1023), (1, 63)):
        with (
            served(corpus) as (address,),
            RemoteBatches(
                address, batch_size, length, order="shuffled", seed=7, mask_borders=True, **ALONE
            ) as feed,
        ):
            x, y = delivered(itertools.islice(feed, 2))
            samples = range(2 * batch_size)

            assert (x, y) == expected(corpus, "shuffled-1", samples, length=length, borders=True)


def test_a_run_goes_on_in_the_middle_with_the_same_targets(address: str) -> None:
    """Also at another batch size, and with copy_into, whose y may be int32."""
    with RemoteBatches(address, B, T, seed=7, mask_borders=True, **ALONE) as feed:
        found = delivered(itertools.islice(feed, 7))
        state = feed.state_dict()
    x, y = torch.empty((3, T), dtype=torch.int32), torch.empty((3, T), dtype=torch.int32)
    with RemoteBatches(address, 3, T, seed=7, mask_borders=True, **ALONE) as feed:
        feed.load_state_dict(state)
        for _ in range(6):
            assert feed.copy_into(x, y)
            found = found[0] + x.tolist(), found[1] + y.tolist()

    assert found == expected(CORPUS, "shuffled-1", range(7 * B + 18), borders=True)
    assert sorted(kind for _, kind, _ in state["planes"]) == [DOCUMENT_STARTS, LOSS_MASK]


def test_padding_and_masks_are_ignored_together(address: str) -> None:
    """An evaluation counts each learned token once."""
    with RemoteBatches(address, B, T, order="shuffled", seed=7, **ALONE) as feed:
        _, y = delivered(feed.epoch(0, tail="pad"))
    with validation_feeds(address, B, T, ["train"], mask_borders=True, **ALONE) as feeds:
        _, bordered = delivered(feeds["train"])

    rows = 36 + 27  # windows of 400 and 300 tokens
    assert y[:rows] == expected(CORPUS, "shuffled-1", range(rows))[1]
    assert bordered[:rows] == expected(CORPUS, "sequential-1", range(rows), borders=True)[1]
    assert y[rows:] == bordered[rows:] == [[-100] * T] * 2


def test_a_validation_may_ignore_the_mask(address: str) -> None:
    """To compare with a loss over all tokens."""
    with validation_feeds(address, B, T, ["train"], loss_mask="ignore", **ALONE) as feeds:
        _, y = delivered(feeds["train"])

    assert y[:63] == expected(CORPUS, "sequential-1", range(63), masked=False)[1]


def transfer_to(
    device: Device,
    kind: str,
    place: torch.device,
    shape: tuple[int, int],
    x_dtype: torch.dtype,
    *,
    masks: tuple[int, ...],
    note: Note | None,
) -> DirectTransfer | PinnedTransfer:
    """What stands in for `transfer_for`."""
    if kind == "direct":
        return DirectTransfer(shape, x_dtype, place, masks, note=note)
    return PinnedTransfer(shape, x_dtype, place, device, masks, note=note)


@pytest.mark.parametrize("kind", ["direct", "ring"])
def test_a_device_gets_the_same_targets(
    address: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The bits of targets travel in the copy of the tokens."""
    device = Device()

    monkeypatch.setattr(
        "tokenfeed.client.batches.remote.transfer_for", partial(transfer_to, device, kind)
    )
    with RemoteBatches(address, B, T, seed=7, mask_borders=True, num_batches=40, **ALONE) as feed:
        batches = list(feed)
    device.finish()

    assert delivered(iter(batches)) == expected(CORPUS, "shuffled-1", range(40 * B), borders=True)


@pytest.mark.parametrize("kind", ["direct", "ring"])
def test_a_device_gets_the_same_documents(
    address: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Those of the batch that is taken, while the next one is already on its way."""
    device = Device()

    with RemoteBatches(address, B, T, seed=7, num_batches=40, **ALONE) as feed:
        wanted = [(each.tokens, each.positions, each.sample) for each in feed.batches()]
    monkeypatch.setattr(
        "tokenfeed.client.batches.remote.transfer_for", partial(transfer_to, device, kind)
    )
    with RemoteBatches(address, B, T, seed=7, num_batches=40, **ALONE) as feed:
        batches = list(feed.batches())
    device.finish()

    found = [(each.tokens, each.positions, each.sample) for each in batches]
    assert len(found) == 40
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


# --- replicas and ranks ---


def with_other_bit(corpus: Corpus) -> Corpus:
    assert corpus.masks is not None
    masks = [list(mask) for mask in corpus.masks]
    masks[1][-1] ^= 1
    return replace(corpus, masks=masks)


def with_other_border(corpus: Corpus) -> Corpus:
    assert corpus.starts is not None
    return replace(corpus, starts=[corpus.starts[0][:-1], corpus.starts[1]])


OTHERS = {
    "another bit": (with_other_bit(CORPUS), "another loss mask"),
    "no mask": (replace(CORPUS, masks=None), "lacks the loss mask"),
    "another border": (with_other_border(CORPUS), "other document starts"),
    "no documents": (replace(CORPUS, starts=None), "lacks the document starts"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_other_planes_is_refused_and_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The tokens are the same, but not what is learnt from there on."""
    other, _ = OTHERS[name]
    options: dict[str, Any] = {"seed": 7, "mask_borders": name == "another border", **ALONE}
    with served(CORPUS, other) as (one, two):
        with RemoteBatches(one, B, T, **options) as feed:
            next(feed)
            state = feed.state_dict()
            following = next(feed)
        with RemoteBatches(two, B, T, **options) as feed:
            if name == "no documents":  # no target depends on them
                feed.load_state_dict(state)
                assert torch.equal(next(feed)[1], following[1])
                return
            for allow in ((), ("fingerprint", "seed")):
                with pytest.raises(StreamMismatch, match=r"planes: the state was saved with "):
                    feed.load_state_dict(state, allow=allow)
            assert feed.state_dict()["sample"] == 0
            feed.load_state_dict(state, allow=("planes",))
            assert torch.equal(next(feed)[0], following[0])
        if name != "another border":
            with RemoteBatches(two, B, T, **{**options, "loss_mask": "ignore"}) as feed:
                feed.load_state_dict(state)
            assert "resumed with other targets plane='loss mask'" in caplog.text
        with RemoteBatches(one, B, T, **options) as feed:
            feed.load_state_dict(state)
            assert all(map(torch.equal, next(feed), following))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("saved", "now", "is_refused"),
    [
        (CORPUS, CORPUS, False),
        (CORPUS, OTHERS["another bit"][0], True),
        (CORPUS, OTHERS["no mask"][0], True),
        (OTHERS["no mask"][0], CORPUS, False),
    ],
)
def test_a_distributed_checkpoint_has_the_planes_too(
    saved: Corpus, now: Corpus, is_refused: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """torch.distributed.checkpoint loads only the keys that the loading feed's own state has."""
    with served(saved, now) as (one, two):
        with RemoteBatches(one, B, T, seed=7, **ALONE) as feed:
            next(feed)
            dcp.save({"feed": feed}, checkpoint_id=tmp_path / "saved", no_dist=True)
        with RemoteBatches(two, B, T, seed=7, **ALONE) as feed:
            if is_refused:
                with pytest.raises(StreamMismatch, match="planes: the state was saved with"):
                    dcp.load({"feed": feed}, checkpoint_id=tmp_path / "saved", no_dist=True)
            else:
                dcp.load({"feed": feed}, checkpoint_id=tmp_path / "saved", no_dist=True)
                assert feed.state_dict()["sample"] == B
                assert ("resumed with other targets" in caplog.text) == (saved is not now)


@pytest.mark.parametrize("name", OTHERS)
def test_a_replica_with_another_plane_is_left_out_and_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before a batch, not in an outage at night."""
    other, problem = OTHERS[name]
    with served(CORPUS, other) as addresses, caplog.at_level(logging.ERROR, "tokenfeed.client"):
        for start in (0, 1):
            with RemoteBatches(
                addresses, B, T, seed=7, mask_borders=True, rank=start, world_size=2
            ) as feed:
                found = delivered(itertools.islice(feed, 5))

            samples = [s for s in range(10 * B) if s // B % 2 == start]
            assert found == expected(CORPUS, "shuffled-1", samples, borders=True)

    rejected = f"server rejected address={addresses[1]} reason="
    assert caplog.text.count(rejected) == 2
    assert all(problem in line for line in caplog.text.splitlines() if rejected in line)


def test_a_replica_with_a_mask_is_left_out_if_the_first_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The targets of a stream do not depend on which server is up."""
    with served(PLAIN, CORPUS) as addresses:
        with RemoteBatches(addresses, B, T, seed=7, rank=1, world_size=2) as feed:
            found = delivered(itertools.islice(feed, 5))

    samples = [s for s in range(10 * B) if s // B % 2]
    assert found == expected(PLAIN, "shuffled-1", samples)
    assert f"address={addresses[1]} reason=has the loss mask of dataset 'train'" in caplog.text


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (with_other_bit(CORPUS), {"loss_mask": "ignore", "mask_borders": True}),
        (replace(CORPUS, masks=None), {"loss_mask": "ignore"}),
        (with_other_border(CORPUS), {}),
        (replace(CORPUS, starts=None), {}),
    ],
)
def test_a_plane_that_is_not_wanted_keeps_no_replica_out(
    other: Corpus, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are the same."""
    with served(CORPUS, other) as addresses:
        with RemoteBatches(addresses, B, T, seed=7, **options, rank=1, world_size=2) as feed:
            next(feed)
        with RemoteBatches(addresses[1], B, T, seed=7, **options, **ALONE) as feed:
            next(feed)

    assert "rejected" not in caplog.text


def comparing(store: dist.Store, rank: int, world_size: int) -> Agreement:
    """What compares the datasets of a feed with those of the other ranks."""
    definition = Definition(wanted(T, B).stream, "random-1", "", is_mixture=False)
    ranks = RankAgreement(lambda: store, "key", rank, world_size)
    return partial(ranks.require_same, definition)


@pytest.mark.parametrize("given", [False, True], ids=["any corpus", "fingerprint given"])
@pytest.mark.parametrize(
    ("other", "planes"),
    [
        (with_other_bit(CORPUS), PlaneSelection()),
        (with_other_border(CORPUS), PlaneSelection(loss_mask=False, document_starts=True)),
    ],
)
def test_ranks_whose_servers_have_other_planes_find_out(
    other: Corpus, planes: PlaneSelection, given: bool
) -> None:
    """As they do of another corpus; fingerprint= is that of the tokens alone."""
    store = dist.HashStore()
    fingerprint = CORPUS.dataset().fingerprint if given else None
    with served(CORPUS, other) as addresses, ExitStack() as opened:
        one, same, two = (
            opened.enter_context(
                closing(
                    Servers(
                        target,
                        wanted(T, B),
                        timeouts=Timeouts(reconnect_seconds=5),
                        fingerprint=fingerprint,
                        agreement=comparing(store, rank, 3),
                        planes=planes,
                    )
                )
            )
            for rank, target in enumerate([addresses[0], *addresses])
        )
        one.await_described()
        same.await_described()
        with pytest.raises(StreamMismatch, match="planes: of rank 2 are not those of rank 0"):
            two.await_described()


@pytest.mark.parametrize("given", [False, True], ids=["any corpus", "fingerprint given"])
@pytest.mark.parametrize("corpora", [(CORPUS, PLAIN), (PLAIN, CORPUS)], ids=["second", "first"])
def test_a_rank_without_a_mask_finds_out_too(corpora: tuple[Corpus, ...], given: bool) -> None:
    """It would train on prompts, and the others would not."""
    store = dist.HashStore()
    fingerprint = CORPUS.dataset().fingerprint if given else None
    with served(*corpora) as addresses, ExitStack() as opened:
        one, two = (
            opened.enter_context(
                closing(
                    Servers(
                        target,
                        wanted(T, B),
                        timeouts=Timeouts(reconnect_seconds=5),
                        fingerprint=fingerprint,
                        agreement=comparing(store, rank, 2),
                    )
                )
            )
            for rank, target in enumerate(addresses)
        )
        one.await_described()
        with pytest.raises(StreamMismatch, match="their corpus is the same, but loss masks or"):
            two.await_described()


# --- local files ---


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> str:
    """A target that reads the corpus without a server."""

    def opened(_: Files) -> LocalDatasets:
        return LocalDatasets([CORPUS.dataset()], lambda: False, polls=False)

    monkeypatch.setattr(Files, "_open_files", opened)
    return "file:train.bin"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_local_files_have_the_same_targets(
    local: str, options: dict[str, Any], prefetch_bytes: int
) -> None:
    """A laptop, a node and a cluster differ by a string."""
    with RemoteBatches(
        local, B, T, seed=7, prefetch_bytes=prefetch_bytes, **options, **ALONE
    ) as feed:
        found = delivered(itertools.islice(feed, 20))

    assert found == expected(
        CORPUS,
        "shuffled-1",
        range(20 * B),
        masked=options.get("loss_mask") != "ignore",
        borders=options.get("mask_borders", False),
    )


# --- what is refused ---


@pytest.mark.parametrize("is_local", [False, True], ids=["server", "files"])
def test_borders_of_unknown_documents_are_refused_at_the_first_read(
    monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    """Not silently left out, and not before: a feed does no I/O when it is made."""
    unknown = replace(CORPUS, starts=None)
    opened = LocalDatasets([unknown.dataset()], lambda: False, polls=False)
    monkeypatch.setattr(Files, "_open_files", lambda _: opened)
    with served(unknown) as (address,):
        target = "file:train.bin" if is_local else address
        feed = RemoteBatches(target, B, T, mask_borders=True, **ALONE)
        with feed, pytest.raises(InvalidRequest) as caught:
            next(feed)

    assert caught.value.subject == "mask_borders"
    assert "dataset 'train' are not known" in caught.value.problem
    assert "--document-end-token" in caught.value.problem


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"loss_mask": "always"}, "loss_mask: 'always' is not one of apply, ignore"),
        ({"loss_mask": None}, "loss_mask: None is not one of apply, ignore"),
        ({"loss_mask": True}, "loss_mask: True is not one of apply, ignore"),
        ({"mask_borders": 1}, "mask_borders: 1 is neither True nor False"),
        ({"mask_borders": "yes"}, "mask_borders: 'yes' is neither True nor False"),
    ],
)
def test_a_wrong_option_is_named_when_the_feed_is_made(
    options: dict[str, Any], problem: str
) -> None:
    """A typing error must not train other targets."""
    with pytest.raises(InvalidRequest) as caught:
        RemoteBatches("localhost:1", B, T, **options, **ALONE)
    with pytest.raises(InvalidRequest):
        validation_feeds("localhost:1", B, T, ["train"], **options, **ALONE)

    assert str(caught.value) == problem


class Searching(MemoryStore):
    """A store that looks for the ends of documents, until it is done."""

    def search(self) -> None:
        self.found = self.planes[DOCUMENT_STARTS]
        self.plane(DOCUMENT_STARTS).fingerprint = b""

    def finish(self) -> None:
        self.plane(DOCUMENT_STARTS).fingerprint = self.found


def test_a_server_that_still_searches_is_waited_for_or_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its search takes minutes, and a trainer that starts meanwhile need not fail."""
    store = Searching("train", CORPUS.tokens, CORPUS.masks, CORPUS.starts)
    dataset = dataset_of(store, TokenChecks())
    store.search()
    options = {"seed": 7, "mask_borders": True, **ALONE}
    timeouts = Timeouts(reconnect_seconds=0.5)
    with serving({"train": dataset}) as peer, served(CORPUS) as (ready,):
        feed = RemoteBatches(peer.address, B, T, **options, timeouts=timeouts)
        with feed, pytest.raises(Unreachable, match="has not determined the document starts"):
            next(feed)
        with RemoteBatches([peer.address, ready], B, T, **options) as feed:
            assert delivered(itertools.islice(feed, 3)) == expected(
                CORPUS, "shuffled-1", range(3 * B), borders=True
            )
        assert f"server left out for now address={peer.address}" in caplog.text
        with RemoteBatches(peer.address, B, T, seed=7, **ALONE) as feed:
            next(feed)  # needs no documents
        caplog.clear()
        with RemoteBatches(peer.address, B, T, **options) as feed, ThreadPoolExecutor(1) as pool:
            read = pool.submit(lambda: delivered(itertools.islice(feed, 3)))
            assert eventually(lambda: "waiting for server" in caplog.text)
            store.finish()
            found = read.result(timeout=10)

    assert found == expected(CORPUS, "shuffled-1", range(3 * B), borders=True)


class Confused(MemoryStore):
    """A store that once says that a document begins with token 0 of each row."""

    confused = 0

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        found = super().gather_planes(spans, planes, patient)
        if self.confused or DOCUMENT_STARTS not in planes:
            return found
        self.confused += 1
        return (starts_plane([[0]] * len(spans)), *found[1:])


def test_a_frame_with_planes_that_no_row_can_have_is_requested_again() -> None:
    """Its checksum is right, but applied it would ignore a target of another row."""
    store = Confused("train", CORPUS.tokens, CORPUS.masks, CORPUS.starts)
    with (
        serving({"train": dataset_of(store, TokenChecks())}) as peer,
        RemoteBatches(peer.address, B, T, seed=7, mask_borders=True, **ALONE) as feed,
    ):
        found = delivered(itertools.islice(feed, 5))

    assert store.confused == 1
    assert found == expected(CORPUS, "shuffled-1", range(5 * B), borders=True)


# --- mixtures ---

SOURCES = {
    "chat": corpus_of(1),
    "web": replace(corpus_of(2, (500,)), masks=None),
    "code": corpus_of(3, (300,)),
    "math": replace(corpus_of(4, (350,)), masks=None),
}


@contextmanager
def served_mixture(sources: dict[str, Corpus] = SOURCES) -> Iterator[str]:
    datasets = {name: corpus.dataset(name) for name, corpus in sources.items()}
    with serving(datasets, kind=MaskedMixtures) as peer:
        yield peer.address


def expected_of_mixture(
    asked: list[tuple[int, list[int]]], names: list[str], samples: Sequence[int], **how: bool
) -> tuple[list, list]:
    x, y = [], []
    for sample in samples:
        source, own = reference.mixture_place(7, asked, sample)
        row = expected(SOURCES[names[source]], "shuffled-1", [own], **how)
        x, y = x + row[0], y + row[1]
    return x, y


STAGES = [
    {"first_sample": 0, "weights": {"web": 1, "math": 1}},
    {"first_sample": 24, "weights": {"web": 1, "chat": 2, "code": 1}},
    {"first_sample": 64, "weights": {"math": 3, "web": 1}},
]
NAMES = ["web", "math", "chat", "code"]
ASKED = [(0, [1, 1, 0, 0]), (24, [1, 0, 2, 1]), (64, [1, 3, 0, 0])]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_of_each_source_of_a_mixture_have_the_mask_of_that_source(
    options: dict[str, Any],
) -> None:
    """Also in stages in which no source has one, and in batches over the border of two stages."""
    mixture = Mixture(stages=STAGES, order="shuffled", seed=7)
    with (
        served_mixture() as address,
        RemoteBatches(address, B, T, mixture=mixture, **options, **ALONE) as feed,
    ):
        found = delivered(itertools.islice(feed, 20))

    assert found == expected_of_mixture(
        ASKED,
        NAMES,
        range(20 * B),
        masked=options.get("loss_mask") != "ignore",
        borders=options.get("mask_borders", False),
    )
    assert has_ignored(found) == (options != {"loss_mask": "ignore"})


def test_a_source_with_a_mask_may_join_a_mixture_without_one() -> None:
    """From its first sample on its prompts are not learned."""
    with (
        served_mixture() as address,
        RemoteBatches(
            address, B, T, mixture={"web": 0.5, "math": 0.5}, order="shuffled", seed=7, **ALONE
        ) as feed,
    ):
        found = delivered(itertools.islice(feed, 6))
        begin = feed.change_mixture({"web": 1, "chat": 3})
        later = delivered(itertools.islice(feed, 14))

    stages = [(0, [50, 50, 0]), (begin, [1, 0, 3])]
    x, y = expected_of_mixture(stages, ["web", "math", "chat"], range(20 * B))
    assert begin <= 100
    assert not has_ignored(found)
    assert (found[0] + later[0], found[1] + later[1]) == (x, y)


@pytest.mark.parametrize(
    ("plane", "name"), [(LOSS_MASK, "loss mask"), (DOCUMENT_STARTS, "document starts")]
)
def test_a_change_of_a_mixture_finds_out_that_what_masks_targets_was_exchanged(
    plane: int, name: str
) -> None:
    """The new source is read from servers that are asked again."""
    datasets = {name: corpus.dataset(name) for name, corpus in SOURCES.items()}
    with (
        serving(datasets, kind=MaskedMixtures) as peer,
        RemoteBatches(
            peer.address, B, T, mixture={"web": 1, "chat": 1}, order="shuffled",
            mask_borders=True, **ALONE,
        ) as feed,
    ):  # fmt: skip
        next(feed)
        datasets["chat"].store.plane(plane).fingerprint = bytes([7] * 32)
        problem = rf"mixture\.chat: has other planes now: {name}$"
        with pytest.raises(StreamMismatch, match=problem):
            feed.change_mixture({"web": 1, "code": 3})


def test_what_ranks_compare_of_a_mixture_contains_its_planes() -> None:
    """When they change it, and when they load a state of it."""
    other = {**SOURCES, "chat": with_other_bit(SOURCES["chat"])}
    mixture = Mixture(stages=STAGES, order="shuffled", seed=7)
    with served_mixture() as one, served_mixture(other) as two, ExitStack() as opened:
        masked, same, exchanged, *ignored = (
            opened.enter_context(
                RemoteBatches(address, B, T, mixture=mixture, loss_mask=how, **ALONE)
            )._stream
            for address, how in [
                (one, "apply"),
                (one, "apply"),
                (two, "apply"),
                (one, "ignore"),
                (two, "ignore"),
            ]
        )

        assert masked.compared() == same.compared() != exchanged.compared()
        assert ignored[0].compared() == ignored[1].compared() != masked.compared()
        assert masked.known() == exchanged.known() == ignored[0].known()


def test_ranks_find_out_that_a_new_source_has_another_mask() -> None:
    """In a change by all of them, and when they load a state that has such a change."""
    other = {**SOURCES, "chat": with_other_bit(SOURCES["chat"])}
    store = dist.HashStore()
    before, after = {"web": 0.5, "math": 0.5}, {"web": 1, "chat": 3}
    with served_mixture() as one, served_mixture(other) as two, ExitStack() as opened:
        feeds = [
            opened.enter_context(
                RemoteBatches(
                    address, B, T, mixture=before, order="shuffled", rank=rank, world_size=2
                )
            )
            for rank, address in enumerate((one, two))
        ]
        with RemoteBatches(one, B, T, mixture=before, order="shuffled", **ALONE) as changed:
            changed.change_mixture(after)
            state = changed.state_dict()
        for rank, feed in enumerate(feeds):
            feed._agreement = RankAgreement(lambda: store, "key", rank, 2)
        with ThreadPoolExecutor(2) as pool:
            changes = [pool.submit(feed.change_mixture, after, 200) for feed in feeds]
            errors = [change.exception(timeout=15) for change in changes]

        assert all("nothing is changed on any rank" in str(error) for error in errors)
        feeds[0].load_state_dict(state)
        with pytest.raises(StreamMismatch, match="state: of rank 1"):
            feeds[1].load_state_dict(state)


def test_a_state_of_a_mixture_compares_only_the_masks_that_were_read() -> None:
    """A later stage may be another one, and its sources too."""
    stages = [STAGES[0], STAGES[1]]
    other = {**SOURCES, "chat": with_other_bit(SOURCES["chat"])}
    with served_mixture() as one, served_mixture(other) as two:

        def feed_of(address: str, stages: list[Any]) -> RemoteBatches:
            mixture = Mixture(stages=stages, order="shuffled", seed=7)
            return RemoteBatches(address, B, T, mixture=mixture, **ALONE)

        with feed_of(one, stages) as feed:
            early = feed.state_dict()
            for _ in range(12):
                next(feed)
            late = feed.state_dict()
        sources = read_state(early).stream.sources
        assert {sources[number].dataset for number, *_ in early["planes"]} == {"chat", "code"}
        with feed_of(two, stages) as feed:
            feed.load_state_dict(early)
            with pytest.raises(StreamMismatch, match=r"planes: .* of dataset 'chat', but this"):
                feed.load_state_dict(late)
            feed.load_state_dict(late, allow=("planes",))
        with feed_of(one, [STAGES[0]]) as feed:
            feed.load_state_dict(early)
            next(feed)


def test_every_source_of_a_mixture_has_to_know_its_documents() -> None:
    """The sentence names the one that does not."""
    sources = {**SOURCES, "code": replace(SOURCES["code"], starts=None)}
    mixture = Mixture(stages=STAGES, order="shuffled", seed=7)
    with served_mixture(sources) as address:
        feed = RemoteBatches(address, B, T, mixture=mixture, mask_borders=True, **ALONE)
        with feed, pytest.raises(InvalidRequest, match=r"mask_borders.* dataset 'code' are not"):
            next(feed)


def test_replicas_of_a_mixture_have_the_same_masks(caplog: pytest.LogCaptureFixture) -> None:
    """A mask of any source counts."""
    other = {**SOURCES, "chat": with_other_bit(SOURCES["chat"])}
    mixture = Mixture(stages=STAGES, order="shuffled", seed=7)
    with served_mixture() as one, served_mixture(other) as two:
        with RemoteBatches([one, two], B, T, mixture=mixture, rank=1, world_size=2) as feed:
            _, y = delivered(itertools.islice(feed, 6))

    samples = [s for s in range(12 * B) if s // B % 2]
    assert y == expected_of_mixture(ASKED, NAMES, samples)[1]
    assert f"address={two} reason=has another loss mask of dataset 'chat'" in caplog.text


# --- commands ---


@pytest.mark.parametrize(
    "command", [["show", "--batch-size=2"], ["bench", "--seconds=0.1", "--context-length=11"]]
)
def test_commands_read_a_masked_corpus(
    address: str, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """show prints all tokens; bench receives what a trainer does."""
    assert main([command[0], address, *command[1:]]) == 0

    printed = capsys.readouterr().out
    assert printed.count("sample ") == 2 or "million tokens/s" in printed


def write_chats(folder: Path, prompt_tokens: Sequence[int], answer_tokens: int = 5) -> Path:
    """Documents of a prompt, which is no target, and an answer."""
    lengths = np.array(prompt_tokens) + answer_tokens
    mask = [[0] * prompt + [1] * answer_tokens for prompt in prompt_tokens]
    path = folder / "chats.ds"
    path.write_bytes(np.arange(lengths.sum(), dtype="<u2").tobytes())
    Path(f"{path}.index").write_bytes(np.cumsum(lengths).astype("<u8").tobytes())
    Path(f"{path}.loss").write_bytes(bytes(np.concatenate(mask).astype("u1")))
    return path


def target_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of rows without a target, each up to the colon."""
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [text.partition(":")[0] for text in found if "have no target" in text]


def test_rows_that_end_before_their_answer_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """long="truncate" keeps the beginning, so the loss of such a batch is not a number."""
    path = write_chats(tmp_path, [40] * 20)

    with RemoteBatches(f"file:{path}", 4, 16, order="padded", long="truncate") as feed:
        for _ in range(9):
            _, y = next(feed)
            assert (y == -100).all()
    assert target_warnings(caplog) == ["4 of the 4 rows of a batch have no target"]
    assert "is not a number" in caplog.text


@pytest.mark.parametrize("rich", [False, True])
def test_rows_without_a_target_are_said_once_and_a_whole_batch_of_them_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rich: bool
) -> None:
    """Batches of a seed, some with one such row, some with two; a context of 44 tokens has none."""
    prompts = [3, 3, 40, 3, 40, 40, 40, 40, 3, 40, 40, 40]
    path = write_chats(tmp_path, prompts)

    with RemoteBatches(f"file:{path}", 2, 44, order="padded", long="truncate") as feed:
        next(feed)
    assert target_warnings(caplog) == []
    with RemoteBatches(f"file:{path}", 2, 16, order="padded", long="truncate", seed=3) as feed:
        batches = iter(feed.batches()) if rich else iter(feed)
        for _ in range(60):
            next(batches)
    assert target_warnings(caplog) == [
        "1 of the 2 rows of a batch have no target",
        "2 of the 2 rows of a batch have no target",
    ]


def test_a_feed_that_ignores_the_mask_says_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_chats(tmp_path, [40] * 20)
    options = {"order": "padded", "long": "truncate", "loss_mask": "ignore"}

    with RemoteBatches(f"file:{path}", 4, 16, **options) as feed:
        _, y = next(feed)
    assert (y != -100).all()
    assert target_warnings(caplog) == []


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({}, True),
        ({"order": "random"}, True),
        ({"order": "packed"}, False),
        ({"loss_mask": "ignore"}, False),
    ],
)
def test_windows_over_documents_with_a_mask_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, str], is_said: bool
) -> None:
    """The default order cuts a response from its prompt."""
    path = write_chats(tmp_path, [3] * 20)

    with RemoteBatches(f"file:{path}", 2, 16, **options) as feed:
        next(feed)
        next(feed)

    said = [record.getMessage() for record in caplog.records if "cut documents" in record.message]
    assert len(said) == is_said
    assert all("order='packed' keeps documents whole" in text for text in said)


@pytest.mark.parametrize(
    "ask", [lambda feed: len(feed.epoch(0)), lambda feed: feed.batches_per_epoch, next]
)
def test_an_order_that_drops_every_document_says_so_whatever_is_asked(
    tmp_path: Path, ask: Callable[[RemoteBatches], object]
) -> None:
    """Not that the context is too long for a file."""
    path = write_chats(tmp_path, [20] * 4)

    feed = RemoteBatches(f"file:{path}", 1, 8, order="padded", long="drop")
    problem = "order: padded-1 has no rows: no document has 2 tokens or more and at most 9"
    with feed, pytest.raises(InvalidRequest, match=problem):
        ask(feed)
