"""Ranks as torch knows them: torchrun, meshes, checkpoints and the DataLoader."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

from client import InvalidRequest, RemoteBatches, StreamMismatch
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.commands import run_ranks
from tests.support.offline import offline_rows, received_rows
from tokenfeed.client.transport.channel import describe

T = 8
WINDOWS = 100

# A rank of a trainer: goes on from the checkpoint where there is a whole one, saves the rows it got
# and a new checkpoint.
RANK = """
import sys
from pathlib import Path
import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from client import RemoteBatches
target, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
with RemoteBatches(target, 5, 8, order="shuffled", seed=9) as feed:
    if (folder / "checkpoint/.metadata").exists():
        dcp.load({"feed": feed}, checkpoint_id=folder / "checkpoint")
    name = f"{feed.position.samples:03}-{dist.get_rank()}.npy"
    rows = [np.concatenate([x, y[:, -1:]], axis=1) for _, (x, y) in zip(range(steps), feed)]
    np.save(folder / name, np.stack(rows))
    dcp.save({"feed": feed}, checkpoint_id=folder / "checkpoint")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_three_ranks_stop_and_two_go_on_without_a_sample_lost_or_repeated(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """The GPUs that one gets tomorrow are others than today's, and so is the server."""
    path = write_tokens(np.random.default_rng(0).integers(0, 50_000, WINDOWS * T + 1))
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    for ranks, steps in [(3, 4), (2, 7)]:
        server = serve("--data", path)
        run_ranks(ranks, script, server.address, tmp_path, str(steps))
        assert server.stop() == 0

    # [step, rank, row]: the order of samples.
    three, two = (
        np.stack([np.load(piece) for piece in sorted(tmp_path.glob(f"{first}-?.npy"))], axis=1)
        for first in ("000", "060")
    )
    assert (three.shape, two.shape) == ((4, 3, 5, T + 1), (7, 2, 5, T + 1))
    rows = np.concatenate([piece.reshape(-1, T + 1) for piece in (three, two)])
    # Over the end of an epoch, too.
    assert len(rows) == 130 > WINDOWS
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 9, T, range(130)))


# A rank of a trainer: compares the corpora of its server's datasets with the other rank's. Only
# rank 0 ever compares the last one.
COMPARING_RANK = """
import sys
import torch.distributed as dist
from client import RemoteBatches, StreamMismatch
dist.init_process_group("gloo")
rank = dist.get_rank()
for dataset in ("same", "differs", "lonely"):
    with RemoteBatches(sys.argv[1 + rank], 5, 8, dataset=dataset) as feed:
        if rank == 0 or dataset != "lonely":
            try:
                feed.state_dict() if dataset == "same" else next(feed)
                print(f"{rank} {dataset}: agreed\\n", end="")
            except StreamMismatch as error:
                print(f"{rank} {dataset}: {error}\\n", end="")
with RemoteBatches(sys.argv[1:3], 5, 8, dataset="differs", fingerprint=sys.argv[3]) as feed:
    next(feed)
    (run,) = feed.history()
    print(f"{rank} {run['stages'][0]['sources'][0]['fingerprint']}\\n", end="")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_whose_servers_have_other_files_find_out_without_waiting_for_each_other(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """Each rank would train on its own corpus, and the loss would not say so."""
    corpora = [write_tokens(np.arange(500) + 7 * n, f"{n}.bin") for n in range(3)]
    same, one, other = corpora
    servers = [
        serve("--data", f"same={same}", "--data", f"differs={own}", "--data", f"lonely={same}")
        for own in (one, other)
    ]
    script = tmp_path / "rank.py"
    script.write_text(COMPARING_RANK)

    wanted = next(
        dataset.fingerprint.hex()
        for dataset in describe(servers[1].address).datasets
        if dataset.name == "differs"
    )
    addresses = [server.address for server in servers]
    lines = run_ranks(2, script, *addresses, wanted).splitlines()

    assert {"0 same: agreed", "1 same: agreed", "0 lonely: agreed"} <= set(lines)
    assert {f"0 {wanted}", f"1 {wanted}"} <= set(lines)
    agreed, refused = sorted(
        (line for line in lines if " differs: " in line), key=lambda line: "agreed" not in line
    )
    first, second = agreed[0], refused[0]
    assert {first, second} == {"0", "1"}
    assert f"fingerprint: rank {second} reads corpus " in refused
    assert f", and rank {first} reads " in refused


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("seed", {"seed": 6}),
        ("order", {"order": "random"}),
        ("context_length", {"context_length": T + 1}),
        ("mixture", {"dataset": None, "mixture": {"web": 1}}),
    ],
)
def test_a_rank_of_another_stream_is_told_before_its_first_batch(
    write_tokens: WriteTokens,
    in_ranks: Callable[..., list[object]],
    part: str,
    other: dict[str, Any],
) -> None:
    """Whichever rank comes first: it is right, and those that differ from it are refused."""
    target = local_pair(write_tokens)

    def feed_of(rank: int) -> RemoteBatches:
        given: dict[str, Any] = {"dataset": "web", "order": "shuffled", "seed": 5}
        given |= {"context_length": T} | (other if rank == 2 else {})
        return RemoteBatches(target, 5, rank=rank, world_size=3, **given)

    found = in_ranks(lambda _, feed: next(feed), 3, feed_of)

    told = {rank: each for rank, each in enumerate(found) if isinstance(each, StreamMismatch)}
    assert [*told] in ([2], [0, 1])
    assert len(told) + sum(isinstance(each, tuple) for each in found) == 3
    for rank, error in told.items():
        assert error.subject == part
        assert re.search(rf"rank {rank} .* rank \d", error.problem)


def test_ranks_whose_states_had_another_seed_before_are_told(
    write_tokens: WriteTokens, in_ranks: Callable[..., list[object]]
) -> None:
    """They go on with the same rows, and would save different checkpoints."""
    target, states = local_pair(write_tokens), []

    def feed_of(rank: int, seed: int = 5, world_size: int = 2) -> RemoteBatches:
        place: dict[str, Any] = {"rank": rank, "world_size": world_size}
        return RemoteBatches(target, 5, T, dataset="web", order="shuffled", seed=seed, **place)

    for seed in (6, 7):
        with feed_of(0, seed, 1) as feed, feed_of(0, 5, 1) as later:
            next(feed)
            later.load_state_dict(feed.state_dict(), allow=("seed",))
            next(later)
            states.append(later.state_dict())

    found = in_ranks(lambda rank, feed: feed.load_state_dict(states[rank]), 2, feed_of)
    same = in_ranks(lambda _, feed: feed.load_state_dict(states[1]), 2, feed_of)

    (refused,) = [each for each in found if each is not None]
    assert isinstance(refused, StreamMismatch)
    assert re.match(r"state: of rank \d, at sample 10, is not that of rank \d, at", str(refused))
    assert same == [None, None]


def local_pair(write_tokens: WriteTokens) -> str:
    """The target of two datasets without a server."""
    web, code = (write_tokens(np.arange(1000) + 2000 * n, f"{n}.bin") for n in range(2))
    return f"file:web={web},code={code}"


@pytest.mark.slow
def test_a_tensor_parallel_pair_gets_the_same_bytes_and_the_other_pair_different_ones(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """With the global rank, half of a layer would silently be trained on other data."""
    path = write_tokens(np.random.default_rng(1).integers(0, 50_000, 5000))
    server = serve("--data", path)

    printed = run_ranks(4, ROOT / "examples" / "mesh.py", "--target", server.address)

    found = re.findall(r"rank (\d): dp (\d), tp (\d), SHA-256 ([0-9a-f]+)\n", printed)
    assert [place[:3] for place in found] == [
        tuple("000"),
        tuple("101"),
        tuple("210"),
        tuple("311"),
    ]
    digests = [place[3] for place in found]
    expected = [mesh_digest(path, rank) for rank in (0, 0, 1, 1)]
    assert digests == [digest[: len(digests[0])] for digest in expected]
    assert len(set(digests)) == 2
    assert printed.count(": yes\n") == 2


def mesh_digest(path: Path, rank: int) -> str:
    """The SHA-256 over five batches of 8 x 64, x then y as int64, of one rank of two."""
    digest = hashlib.sha256()
    for step in range(5):
        first = step * 16 + rank * 8
        rows = offline_rows([path], "shuffled-1", 0, 64, range(first, first + 8))
        digest.update(rows[:, :-1].tobytes() + rows[:, 1:].tobytes())
    return digest.hexdigest()


def test_a_dataloader_yields_the_same_batches_as_the_feed(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Many a trainer takes nothing but a DataLoader."""
    path = write_tokens(np.random.default_rng(2).integers(0, 50_000, 5000))
    server = serve("--data", path)

    with RemoteBatches(server.address, 5, T, seed=3, num_batches=20) as feed:
        rows = received_rows(DataLoader(feed, batch_size=None))

    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 3, T, range(100)))


def test_a_dataloader_reads_nothing_ahead_of_what_it_hands_out(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """So that the feed's state, taken between two batches, is exact."""
    server = serve("--data", write_tokens(range(5000)))

    with RemoteBatches(server.address, 5, T) as feed:
        for count, _ in zip(range(1, 4), DataLoader(feed, batch_size=None), strict=False):
            assert feed.state_dict()["sample"] == 5 * count


def test_an_epoch_goes_into_a_dataloader_too(serve: Serve, write_tokens: WriteTokens) -> None:
    """With its length, which progress bars ask for."""
    path = write_tokens(np.random.default_rng(2).integers(0, 50_000, WINDOWS * T + 1))
    server = serve("--data", path)

    with RemoteBatches(server.address, 8, T, order="shuffled", seed=3) as feed:
        loader = DataLoader(feed.epoch(2), batch_size=None)
        rows = received_rows(loader)

        assert len(loader) == 12
    assert np.array_equal(rows, offline_rows([path], "shuffled-1", 3, T, range(200, 296)))


def test_a_feed_is_not_sent_to_another_process() -> None:
    """Workers that are spawned get what is pickled; each would yield the same batches."""
    with pytest.raises(InvalidRequest, match="create it there"):
        pickle.dumps(RemoteBatches("localhost:1", 5, T))


def test_a_worker_process_of_a_dataloader_is_refused_with_the_cure() -> None:
    """Each worker would read the whole stream, and every batch would arrive several times."""
    with RemoteBatches("localhost:1", 5, T) as feed:
        loader = DataLoader(feed, batch_size=None, num_workers=1)

        # torch hands it over from the worker as text.
        with pytest.raises((RuntimeError, InvalidRequest), match="num_workers: has to be 0"):
            next(iter(loader))


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with a single rank."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def through_json(state: dict[str, Any], _: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


def through_torch(state: dict[str, Any], path: Path) -> dict[str, Any]:
    torch.save({"feed": state}, path)
    loaded: dict[str, Any] = torch.load(path, weights_only=True)["feed"]
    return loaded


@pytest.mark.parametrize("through", [through_json, through_torch])
def test_a_saved_state_is_plain_values_and_resumes_exactly(
    serve: Serve,
    write_tokens: WriteTokens,
    tmp_path: Path,
    through: Callable[[dict[str, Any], Path], dict[str, Any]],
) -> None:
    """It lies in any checkpoint, also in one that is loaded without trusting it."""
    path = write_tokens(np.random.default_rng(4).integers(0, 50_000, WINDOWS * T + 1))
    server = serve("--data", path)
    with RemoteBatches(server.address, 7, T, order="shuffled", seed=2**63 + 1) as feed:
        for _ in range(13):
            next(feed)
        saved = feed.state_dict()

    loaded = through(saved, tmp_path / "state")
    with RemoteBatches(server.address, 4, T, order="shuffled", seed=2**63 + 1) as feed:
        feed.load_state_dict(loaded)
        rows = received_rows([next(feed) for _ in range(5)])

    assert loaded == saved
    expected = offline_rows([path], "shuffled-1", 2**63 + 1, T, range(91, 111))
    assert np.array_equal(rows, expected)


@pytest.mark.usefixtures("one_rank")
def test_a_feed_is_a_stateful_of_torch_distributed_checkpoint(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """It is saved with model and optimizer without glue code."""
    path = write_tokens(np.random.default_rng(5).integers(0, 50_000, WINDOWS * T + 1))
    server = serve("--data", path)
    with RemoteBatches(server.address, 7, T, order="shuffled", seed=2**63 + 1) as feed:
        for _ in range(13):
            next(feed)
        dcp.save({"feed": feed, "model": {"w": torch.ones(2)}}, checkpoint_id=tmp_path / "saved")

    with RemoteBatches(server.address, 4, T, order="shuffled", seed=2**63 + 1) as feed:
        dcp.load({"feed": feed}, checkpoint_id=tmp_path / "saved")
        rows = received_rows([next(feed) for _ in range(5)])

    expected = offline_rows([path], "shuffled-1", 2**63 + 1, T, range(91, 111))
    assert np.array_equal(rows, expected)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("skips", "own_skips"), [(0, 3), (3, 0), (3, 1)])
def test_a_checkpoint_is_loaded_by_a_feed_with_a_history_of_another_length(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, skips: int, own_skips: int
) -> None:
    """torch.distributed.checkpoint compares what it loads with the state that the feed has."""
    server = serve("--data", write_tokens(range(5000)))
    with RemoteBatches(server.address, 7, T) as feed:
        take_and_skip(feed, skips)
        saved, history = feed.state_dict(), feed.history()
        dcp.save({"feed": feed}, checkpoint_id=tmp_path / "saved")

    with RemoteBatches(server.address, 4, T) as feed:
        take_and_skip(feed, own_skips)
        dcp.load({"feed": feed}, checkpoint_id=tmp_path / "saved")

        assert len(history) == skips
        assert (feed.state_dict(), feed.history()) == (saved, history)


def take_and_skip(feed: RemoteBatches, count: int) -> None:
    for _ in range(count):
        next(feed)
        feed.skip(1)
