"""NumpyBatches: the same batches as arrays, without torch.

Expected values come from RemoteBatches, and from the second implementation.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from client import InvalidRequest, NumpyBatches, NumpyRichBatch, RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.end_to_end.training.test_target_masks import ALONE, CORPUS, B, T, expected, served
from tokenfeed.client.feed.delivery import BatchReader

ORDERS = {"random": "random-1", "shuffled": "shuffled-1", "sequential": "sequential-1"}
ATTRIBUTES = (
    "tokens",
    "positions",
    "segment_ids",
    "cu_seqlens",
    "max_seqlen",
    "loss_mask",
    "sample",
    "source",
    "state_before",
    "state_after",
)
METHODS = ("cu_seqlens_fixed", "cu_seqlens_rows", "doc_lens")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(CORPUS) as (one,):
        yield one


def plain(value: Any) -> Any:
    """An array, a tensor, or a tuple with one, as Python's own values."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def rows_of(batches: Any) -> list[tuple[list, list]]:
    return [(x.tolist(), y.tolist()) for x, y in batches]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.int32, "int64"])
def test_the_arrays_are_those_of_the_order(address: str, order: str, dtype: Any) -> None:
    """Masked targets are -100 in both types."""
    with NumpyBatches(
        address, B, T, dtype=dtype, order=order, seed=7, num_batches=20, **ALONE
    ) as feed:
        batches = list(feed)

    for x, y in batches:
        assert x.shape == y.shape == (B, T)
        assert x.dtype == y.dtype == np.dtype(dtype)
        assert all(array.flags.c_contiguous and array.flags.writeable for array in (x, y))
        assert not np.may_share_memory(x, y)
    x, y = (np.concatenate(arrays).tolist() for arrays in zip(*batches, strict=True))
    assert (x, y) == expected(CORPUS, ORDERS[order], range(20 * B))
    assert any(-100 in row for row in y)


@pytest.mark.parametrize("borders", [False, True])
def test_a_rich_batch_has_the_same_attributes(address: str, borders: bool) -> None:
    """As arrays in place of tensors; tokens and positions are as wide as x."""
    arguments: dict[str, Any] = {"seed": 7, "num_batches": 12, "mask_borders": borders, **ALONE}
    with (
        NumpyBatches(address, B, T, **arguments) as ours,
        RemoteBatches(address, B, T, **arguments) as theirs,
    ):
        pairs = list(zip(ours.batches(), theirs.batches(), strict=True))

    assert len(pairs) == 12
    for mine, other in pairs:
        assert isinstance(mine, NumpyRichBatch)
        assert plain(tuple(mine)) == plain(tuple(other))
        for name in ATTRIBUTES:
            assert plain(getattr(mine, name)) == plain(getattr(other, name)), name
        for name in METHODS:
            assert plain(getattr(mine, name)()) == plain(getattr(other, name)()), name
        assert mine.tokens.dtype == mine.positions.dtype == np.int32
        assert mine.segment_ids.dtype == np.int32
        assert mine.loss_mask.dtype == np.bool_


def test_a_state_moves_between_arrays_and_tensors(address: str) -> None:
    """A run that leaves torch behind, or takes it up, goes on at its next batch."""
    with RemoteBatches(address, B, T, seed=7, num_batches=9, **ALONE) as feed:
        wanted = rows_of(feed)

    found, state = [], None
    for kind in (NumpyBatches, RemoteBatches, NumpyBatches):
        with kind(address, B, T, seed=7, num_batches=9, **ALONE) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found += rows_of(next(feed) for _ in range(3))
            state = feed.state_dict()
            runs = feed.history()

    assert found == wanted
    assert [(run["first_sample"], run["end_sample"]) for run in runs] == [(0, 9 * B)]


@pytest.mark.parametrize("tail", ["drop", "wrap", "pad"])
def test_an_epoch_is_the_same(address: str, tail: Any) -> None:
    """Also where the last batch is filled up."""
    arguments: dict[str, Any] = {"order": "shuffled", "seed": 7, **ALONE}
    with (
        NumpyBatches(address, 8, T, **arguments) as ours,
        RemoteBatches(address, 8, T, **arguments) as theirs,
    ):
        mine, other = ours.epoch(1, tail), theirs.epoch(1, tail)
        assert len(mine) == len(other) > 1
        assert rows_of(mine) == rows_of(other)
        assert ours.state_dict() == theirs.state_dict()


@pytest.mark.parametrize("kind", [NumpyBatches, RemoteBatches])
def test_an_epoch_has_rich_batches(address: str, kind: Any) -> None:
    """For an evaluation with attention within documents; filled rows are masked there too."""
    with kind(address, 8, T, order="sequential", **ALONE) as feed:
        # The first loop goes on behind this batch, a later one begins at sample 0.
        next(feed)
        wanted = rows_of(feed.epoch(0, "pad"))
        assert wanted == (rows_of(feed.epoch(0, "pad")))[1:]
        wanted = rows_of(feed.epoch(0, "pad"))
        batches = list(feed.epoch(0, "pad").batches())
        end = feed.state_dict()

        assert rows_of(batches) == wanted
        assert [plain(each.sample)[0] for each in batches] == list(range(0, 8 * len(batches), 8))
        assert plain(batches[-1].loss_mask)[-1] == [False] * T
        assert plain(batches[0].positions)[0][:2] in ([0, 0], [0, 1])
        states = [each.state_before for each in batches] + [batches[-1].state_after]
        assert states[-1] == end
        assert states[1:-1] == [each.state_after for each in batches[:-1]]
    for state, place in ((states[0], 0), (states[3], 3)):
        with kind(address, 8, T, order="sequential", **ALONE) as feed:
            feed.load_state_dict(state)
            assert rows_of([next(feed)])[0][0] == wanted[place][0]


def test_the_ranks_of_a_mixture_get_the_same(serve: Serve, write_tokens: WriteTokens) -> None:
    """Weights that change included."""
    sources = {"web": 20_000, "code": 10_000}
    paths = {name: write_tokens(np.arange(count) % 50_000) for name, count in sources.items()}
    server = serve(*(f"--data={name}={path}" for name, path in paths.items()))

    def read(kind: Any, rank: int) -> tuple[Any, Any]:
        with kind(
            server.address,
            3,
            16,
            mixture={"web": 0.75, "code": 0.25},
            order="shuffled",
            rank=rank,
            world_size=2,
            start_sample=1000 * (rank + 1),
            num_batches=30,
        ) as feed:
            batches = list(feed.batches())
            return rows_of(batches), [plain(each.source) for each in batches]

    for rank in range(2):
        assert read(NumpyBatches, rank) == read(RemoteBatches, rank)


def test_batches_go_into_the_caller_s_arrays(address: str) -> None:
    """Such as shared memory; of either type."""
    x, y = np.empty((B, T), np.int64), np.empty((B, T), np.int32)
    with NumpyBatches(address, B, T, seed=7, num_batches=4, **ALONE) as feed:
        found = []
        while feed.copy_into(x, y):
            found.append((x.tolist(), y.tolist()))
        last = x.tolist(), y.tolist()

    with NumpyBatches(address, B, T, seed=7, num_batches=4, **ALONE) as feed:
        assert found == rows_of(feed)
    assert last == found[-1]


X = np.empty((B, T), np.int32)


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        (X[:2], X.copy(), r"x: has shape \(2, 11\), but a batch has \(5, 11\)"),
        (X, X.astype(np.float32), "y: is float32; pass numpy.int64 or numpy.int32"),
        (X, X.astype(">i4"), "y: is >i4; pass numpy.int64 or numpy.int32"),
        (X.T.copy().T, X.copy(), "x: is not contiguous"),
        (X.copy(), np.broadcast_to(np.int32(0), (B, T)), "y: is not contiguous"),
        (X.copy(), np.frombuffer(X.tobytes(), np.int32).reshape(B, T), "y: is read-only"),
        (X, X, "y: shares memory with x"),
        (X.tolist(), X, "x: is list, not an array"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(x: Any, y: Any, problem: str) -> None:
    """Before anything is sent, and named."""
    with pytest.raises(InvalidRequest, match=problem):
        NumpyBatches("localhost:1", B, T, **ALONE).copy_into(x, y)


@pytest.mark.parametrize("dtype", [np.float32, "int16", ">i4", None, "tokens", 7, np.uint32])
def test_another_type_is_refused(dtype: Any) -> None:
    """Tokens are integers, and -100 is one of the targets."""
    with pytest.raises(InvalidRequest, match=r"dtype: .* is neither numpy\.int32 nor"):
        NumpyBatches("localhost:1", B, T, dtype=dtype, **ALONE)


def test_a_token_that_an_int32_cannot_hold_is_an_error(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Cast, it would be a negative one."""
    data = write_tokens(np.full(1000, 2**31), dtype="<u4")
    server = serve("--data", data, "--dtype", "uint32")
    with NumpyBatches(server.address, 2, 8, **ALONE) as feed:
        with pytest.raises(InvalidRequest, match=r"^dtype: token 2147483648 does not fit int32"):
            next(feed)
    wide, narrow = np.empty((2, 8), np.int64), np.empty((2, 8), np.int32)
    with NumpyBatches(server.address, 2, 8, dtype="int64", **ALONE) as feed:
        for name, pair in {"x": (narrow, wide), "y": (wide, narrow)}.items():
            with pytest.raises(InvalidRequest, match=f"^{name}: token 2147483648 does not fit"):
                feed.copy_into(*pair)
        assert next(feed)[0].tolist() == [[2**31] * 8] * 2


class Wrapped(IterableDataset[torch.Tensor]):
    """Of a user who wants tensors all the same."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __iter__(self) -> Iterator[torch.Tensor]:
        for x, _ in NumpyBatches(self.address, B, T, **ALONE):
            yield torch.from_numpy(x)


def test_a_worker_of_a_loader_is_refused(address: str) -> None:
    """Each worker would deliver the same batches."""
    loader = DataLoader(Wrapped(address), batch_size=None, num_workers=1)

    with pytest.raises(Exception, match="num_workers: has to be 0"):
        next(iter(loader))


@pytest.mark.parametrize("kind", [NumpyBatches, RemoteBatches])
def test_a_batch_that_arrived_while_the_feed_was_closed_is_delivered(
    address: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state counts it already."""
    take = BatchReader.next

    with kind(address, B, T, seed=7, **ALONE) as feed:

        def closed_meanwhile(reader: Any, out: Any) -> Any:
            batch = take(reader, out)
            if batch is not None and reader.sample == 3 * B:
                feed.close()
            return batch

        monkeypatch.setattr(BatchReader, "next", closed_meanwhile)
        batches = list(feed.batches())

        assert len(batches) == 3
        assert feed.state_dict()["sample"] == 3 * B
        assert batches[-1].state_after == feed.state_dict()


def test_a_batch_is_not_pickled(address: str) -> None:
    """It refers to its feed."""
    with NumpyBatches(address, B, T, **ALONE) as feed:
        with pytest.raises(InvalidRequest, match="batch: cannot be pickled or copied"):
            pickle.dumps(next(feed.batches()))


@pytest.mark.parametrize("local", [False, True])
def test_a_machine_without_torch_reads(
    address: str, local: bool, write_tokens: WriteTokens
) -> None:
    """All of the class: no line of it may import torch."""
    path = write_tokens(np.arange(5000) % 1000)
    target = f"file:{path}" if local else address
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from tokenfeed import NumpyBatches\n"
        f"arguments = dict(order='shuffled', rank=0, world_size=1)\n"
        f"with NumpyBatches({target!r}, 5, 11, **arguments) as feed:\n"
        "    batch = next(feed.batches())\n"
        "    print(batch.x.shape, batch.tokens.shape, batch.sample.tolist(), len(feed.epoch(0)))\n"
        "    state, x = feed.state_dict(), next(feed)[0]\n"
        f"with NumpyBatches({target!r}, 5, 11, **arguments) as feed:\n"
        "    feed.load_state_dict(state)\n"
        "    assert (next(feed)[0] == x).all()\n"
        "    epoch = feed.epoch(1)\n"
        "    print(feed.stats().batches, len(list(epoch.batches())) == len(epoch))\n"
        "assert {name for name in sys.modules if name.startswith('torch')} == {'torch'}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    # On a busy machine it may say that it waits.
    waits = ("waiting for server ", "server is back ")
    assert [line for line in done.stderr.splitlines() if not line.startswith(waits)] == []
    shapes, stats = done.stdout.splitlines()
    assert shapes.startswith("(5, 11) (5, 12) [0, 1, 2, 3, 4] ")
    assert stats == "1 True"


def test_a_feed_opens_while_another_thread_imports_torch(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are known by name before they have their functions."""
    for name in ("torch.distributed", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    with NumpyBatches(f"file:{write_tokens(np.arange(5000))}", B, T, order="sequential") as feed:
        assert next(feed)[0][0].tolist() == list(range(T))
