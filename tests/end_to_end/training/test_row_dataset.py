"""Rows by their index, for frameworks that bring a sampler: those of the offline function, from
servers and from files, in this process and in workers of a DataLoader.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from client import (
    CorpusError,
    InvalidRequest,
    NumpyBatches,
    RemoteBatches,
    StreamMismatch,
    Timeouts,
    Unreachable,
)
from tests.conftest import Serve, WriteTokens
from tests.support import forked
from tests.support.offline import offline_rows, received_rows
from tests.support.packed_corpora import write_corpus
from tests.support.ports import free_port
from tests.support.redacting import redact
from tokenfeed.client.feed.row_dataset import RowDataset

T, WINDOWS, SEED = 8, 600, 5
ALONE = {"seed": SEED, "rank": 0, "world_size": 1}
Dataset = RowDataset[torch.Tensor, Any]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.random.default_rng(3).integers(0, 50_000, WINDOWS * T + 1))


@pytest.fixture(params=["server", "files"])
def target(request: pytest.FixtureRequest, path: Path, serve: Serve) -> str:
    return f"file:{path}" if request.param == "files" else serve("--data", path).address


@pytest.fixture
def open_dataset() -> Iterator[Callable[..., Dataset]]:
    """Make datasets of feeds: open_dataset(target, kind=RemoteBatches, order="shuffled", ...)."""
    found: list[Dataset] = []

    def start(target: Any, *, kind: Any = RemoteBatches, **given: Any) -> Dataset:
        found.append(kind(target, 4, given.pop("T", T), **(ALONE | given)).as_dataset())
        return found[-1]

    yield start
    for each in found:
        for feed in each._feeds.values():
            feed.close()


Open = Callable[..., Dataset]


def expected(path: Path, order: str = "shuffled-1") -> np.ndarray:
    """All rows of an epoch, by the second implementation."""
    return offline_rows([path], order, SEED, T, range(WINDOWS))


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("kind", [RemoteBatches, NumpyBatches])
def test_an_item_is_the_sample_of_its_index(
    open_dataset: Open, target: str, path: Path, order: str, kind: Any
) -> None:
    """In the order of the feed, whatever order a sampler asks in, also several times."""
    dataset = open_dataset(target, kind=kind, order=order)
    rows = expected(path, f"{order}-1")
    indices = [17, 0, WINDOWS - 1, 17, -1, -WINDOWS, np.int64(44), 3]

    found = dataset.__getitems__(indices)

    assert len(dataset) == WINDOWS
    assert [x.shape for x, _ in found] == [(T,)] * len(indices)
    assert received_rows([(x[None], y[None]) for x, y in found]).tolist() == rows[indices].tolist()
    assert dataset[5][0].tolist() == rows[5][:-1].tolist()
    assert dataset[-2][1].tolist() == rows[-2][1:].tolist()
    assert dataset.__getitems__([]) == []


def test_an_index_beyond_the_epoch_is_an_index_error(open_dataset: Open, target: str) -> None:
    """Python's own, which ends a loop over a sequence, and which samplers expect."""
    dataset = open_dataset(target)

    for index in (WINDOWS, -WINDOWS - 1, 1 << 40):
        with pytest.raises(IndexError, match=f"{index} is not in .-{WINDOWS}, {WINDOWS}."):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.5]  # type: ignore[index]


def test_a_list_of_any_length_is_a_request_for_each_4096_rows(
    open_dataset: Open, serve: Serve, path: Path
) -> None:
    """Of a batch of a DataLoader there is one."""
    server = serve("--data", path, "--log-level", "debug")
    dataset, rows = open_dataset(server.address), expected(path)
    indices = np.random.default_rng(1).integers(0, WINDOWS, 5000)

    batches = [*DataLoader(dataset, 200)]
    asked = server.stderr.count("call opened")
    found = dataset.__getitems__(indices)

    assert received_rows(batches).tolist() == rows.tolist()
    assert asked == WINDOWS / 200
    assert server.stderr.count("call opened") - asked == 2
    assert received_rows([(x[None], y[None]) for x, y in found]).tolist() == rows[indices].tolist()


# A trainer: rank and way to start workers are its arguments. Its parent has asked for the length,
# and has read a row, before the workers start.
TRAINER = """
import json, sys
from client import RemoteBatches
from torch.utils.data import DataLoader, DistributedSampler

def main(target, start, ranks):
    dataset = RemoteBatches(target, 4, 8, seed=5, rank=0, world_size=1).as_dataset()
    dataset[1]
    found = []
    for rank in map(int, ranks):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=9)
        loader = DataLoader(dataset, 32, sampler=sampler, num_workers=2,
                            multiprocessing_context=start)
        sampler.set_epoch(4)
        batches = [[x.tolist(), y[:, -1:].tolist()] for x, y in loader]
        found.append([list(sampler), batches])
    print(json.dumps(found))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "start", "ranks"),
    [("server", "fork", "01"), ("files", "fork", "01"), ("server", "spawn", "1")],
    indirect=["target"],
)
def test_workers_of_a_dataloader_read_what_a_distributed_sampler_shares_out(
    target: str, path: Path, tmp_path: Path, start: str, ranks: str
) -> None:
    """Each worker opens a feed of its own: a fork must not read from its parent's connection."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)

    done = forked.run(script, target, start, ranks, timeout=100)

    assert done.returncode == 0, done.stderr
    rows, seen = expected(path), []
    for indices, batches in json.loads(done.stdout.splitlines()[-1]):
        found = np.concatenate([np.concatenate(pair, axis=1) for pair in batches])
        assert found.tolist() == rows[indices].tolist()
        seen += indices
    assert len({*seen}) == len(seen) == WINDOWS * len(ranks) / 2


def test_a_pickled_dataset_reads_in_its_process_and_stays_at_its_corpus(
    open_dataset: Open, serve: Serve, path: Path, write_tokens: WriteTokens
) -> None:
    """A worker that starts later may find another corpus behind the same address."""
    port = free_port()
    server = serve("--data", path, port=port)
    dataset = open_dataset(server.address, timeouts=Timeouts(reconnect_seconds=5.0))
    assert len(pickle.loads(pickle.dumps(dataset))) == WINDOWS
    assert len(dataset) == WINDOWS
    pickled = pickle.dumps(dataset)
    server.stop()
    serve("--data", write_tokens(range(WINDOWS * T + 1)), port=port)

    again = pickle.loads(pickled)
    assert len(again) == WINDOWS
    with pytest.raises(StreamMismatch, match="fingerprint"):
        again[3]


def test_a_dataset_stays_at_the_corpus_of_its_feed(
    serve: Serve, path: Path, write_tokens: WriteTokens
) -> None:
    """The first server of a rank may have another one, and so may one that was restarted."""
    other = write_tokens(range(WINDOWS * T + 1), "train-other.bin")
    port = free_port()
    first, second = serve("--data", path, port=port), serve("--data", f"train={other}")
    timeouts = Timeouts(read_seconds=1.0, reconnect_seconds=2.0)
    with RemoteBatches(first.address, 4, T, **ALONE, timeouts=timeouts) as feed:
        next(feed)
        first.stop()
        serve("--data", f"train={other}", port=port)
        with pytest.raises(StreamMismatch, match="fingerprint"):
            feed.as_dataset()[3]
    # Two ranks that agree on a corpus have it in their datasets too.
    serve("--data", path, port=(again := free_port()))
    addresses = [f"127.0.0.1:{again}", second.address]
    ours = RemoteBatches(addresses[0], 4, T, **ALONE).as_dataset()
    with RemoteBatches(addresses, 4, T, rank=1, world_size=2, fingerprint=ours._fingerprint,
        order="shuffled", seed=SEED) as feed:  # fmt: skip
        assert feed.as_dataset()[3][0].tolist() == expected(path)[3][:-1].tolist()


def test_a_server_that_goes_away_is_replaced_by_its_replica_and_its_end_is_told(
    open_dataset: Open, serve: Serve, path: Path
) -> None:
    """As of a feed, with its timeouts."""
    servers = [serve("--data", path) for _ in range(2)]
    dataset = open_dataset(
        [each.address for each in servers],
        timeouts=Timeouts(read_seconds=1.0, reconnect_seconds=3.0),
    )
    rows = expected(path)
    assert dataset[3][0].tolist() == rows[3][:-1].tolist()

    servers[0].stop()
    found = [x.tolist() for x, _ in dataset.__getitems__(range(50))]
    servers[1].stop()

    assert found == rows[:50, :-1].tolist()
    with pytest.raises(Unreachable, match=r"no batches for . s"):
        dataset[4]


def test_ranks_begin_with_different_replicas(serve: Serve, path: Path) -> None:
    """As feeds do: rank r with replica r, modulo their number."""
    servers = [serve("--data", path, "--log-level", "debug") for _ in range(2)]
    addresses = [each.address for each in servers]
    with RemoteBatches(addresses, 4, T, rank=1, world_size=2) as feed:
        feed.as_dataset()[0]

    assert ["call opened" in each.stderr for each in servers] == [False, True]


def test_files_that_change_are_an_error_of_a_feed(open_dataset: Open, path: Path) -> None:
    """And no row of another corpus."""
    dataset = open_dataset(f"file:{path}")
    len(dataset)
    path.write_bytes(path.read_bytes()[:-400])

    with pytest.raises(CorpusError):
        dataset.__getitems__(range(WINDOWS))


@pytest.mark.parametrize("order", ["packed", "padded"])
def test_some_rows_are_a_batch_that_carries_more(
    open_dataset: Open, serve: Serve, tmp_path: Path, order: str
) -> None:
    """Documents of rows that a sampler chose have to be kept apart too."""
    corpus = write_corpus(tmp_path / "a", [[9, 4, 7, 3, 12, 5], [6, 2, 8]], masked=frozenset({5}))
    server = serve(*corpus.words)
    dataset = open_dataset(server.address, order=order, T=16)
    with RemoteBatches(server.address, 1, 16, order=order, **ALONE) as feed:
        own = list(feed.epoch(0).batches())

    batch = dataset.batch(range(len(dataset)))

    assert len(own) == len(dataset) > 1
    for name in ("x", "y", "positions", "segment_ids", "padding_mask", "loss_mask", "sample"):
        joined = torch.cat([getattr(each, name) for each in own])
        assert torch.equal(getattr(batch, name), joined), name
    assert batch.num_valid_targets == sum(each.num_valid_targets for each in own)
    assert [y.tolist() for _, y in dataset.__getitems__([1, 0])] == batch.y[[1, 0]].tolist()
    with pytest.raises(InvalidRequest, match=r"^state: is not known of rows that were chosen"):
        batch.state_before  # noqa: B018
    with pytest.raises(InvalidRequest, match=r"^indices: 4097 is not in \[1, 4096\]"):
        dataset.batch([0] * 4097)
    with pytest.raises(InvalidRequest, match=r"^indices: 0 is not in \[1, 4096\]"):
        dataset.batch([])


def test_a_dataset_has_the_redactions_of_its_feed_from_its_first_row_on(
    serve: Serve, tmp_path: Path
) -> None:
    """Who asks for a row of epoch 0 again may not get what was taken out meanwhile."""
    corpus = write_corpus(tmp_path / "a", [[200, 100]], first=1)
    listed = redact(corpus.paths, (0, 200, 300))
    server = serve(*corpus.words)
    with RemoteBatches(server.address, 2, T, order="sequential", **ALONE) as feed:
        next(feed)
        feed.redact(listed, at_sample=1000)
        dataset = feed.as_dataset()
        rows = received_rows([(x[None], y[None]) for x, y in dataset.__getitems__(range(30))])

    assert 0 not in rows[:20, :-1]
    assert not rows[26:, :-1].any()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"order": "random"}, "order: random-1 is endless and has no epochs"),
        ({"mixture": {"web": 1}}, "mixture: has no epochs"),
    ],
)
def test_a_stream_without_epochs_has_no_length_and_is_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    """Before anything is sent."""
    with RemoteBatches("localhost:1", 4, T, **arguments) as feed:
        with pytest.raises(InvalidRequest, match=f"^{re.escape(problem)}"):
            feed.as_dataset()


def test_the_feed_and_its_dataset_do_not_move_each_other(target: str, path: Path) -> None:
    """One may look at single rows while the other trains."""
    rows = expected(path)
    with RemoteBatches(target, 4, T, start_sample=8, num_batches=3, **ALONE) as feed:
        dataset = feed.as_dataset()
        found = received_rows([next(feed)])
        assert dataset[100][0].tolist() == rows[100][:-1].tolist()
        found = np.concatenate([found, received_rows(feed)])

    assert found.tolist() == rows[8:20].tolist()
    assert dataset[0][0].tolist() == rows[0][:-1].tolist()
