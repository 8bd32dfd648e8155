"""A feed of local files, and one of a server of the same files: the same rows and states."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client import LimitExceeded, RemoteBatches, StreamMismatch
from tests.conftest import ROOT, Serve, WriteTokens
from tests.server.storage.documents.starts_corpora import write_datatrove
from tests.support.commands import run_ranks
from tests.support.offline import offline_rows, received_rows
from tests.support.waiting import least_seconds
from tokenfeed.client.feed.options import Tail
from tokenfeed.sampling import orders

T = 8
WINDOWS = 101
Batch = tuple[torch.Tensor, torch.Tensor]
Make = Callable[..., RemoteBatches]

# Name -> type of the tokens in files, the greatest token, and what `tokenfeed serve` is told.
CORPORA: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "uint16": ("<u2", 1 << 16, ()),
    "uint32": ("<u4", 1 << 31, ("--dtype", "uint32")),
    "int64 as uint16": ("<i8", 1 << 16, ("--dtype", "int64")),
    "int64 as uint32": ("<i8", 1 << 20, ("--dtype", "int64")),
}
READS = ["map", "pread"]
PREFETCH: list[dict[str, int]] = [{}, {"prefetch_bytes": 0}]


def three_shards(write: WriteTokens, dtype: str, end: int) -> list[Path]:
    """One of them is too short for a window."""
    random = np.random.default_rng(3)
    sizes = (900, T, 2000)
    return [write(random.integers(0, end, n), f"{n}.bin", dtype) for n in sizes]


def local(paths: list[Path], options: str = "") -> str:
    return f"file:{','.join(map(str, paths))}{options}"


def require_same(one: RemoteBatches, other: RemoteBatches, batches: int) -> None:
    for (x, y), (other_x, other_y) in zip(
        [next(one) for _ in range(batches)], [next(other) for _ in range(batches)], strict=True
    ):
        assert (x.dtype, y.dtype) == (other_x.dtype, other_y.dtype)
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


@pytest.mark.parametrize("corpus", CORPORA)
def test_no_row_differs_from_that_of_a_server_of_the_same_files(
    serve: Serve, write_tokens: WriteTokens, corpus: str
) -> None:
    """In any order, however the files are read, and with or without a thread."""
    dtype, end, arguments = CORPORA[corpus]
    paths = three_shards(write_tokens, dtype, end)
    server = serve("--data", *paths, *arguments)
    option = f"&dtype={arguments[1]}" if arguments else ""

    for order in orders.OF_WINDOWS:
        for read in READS:
            for prefetch in PREFETCH:
                files = local(paths, f"?read={read}{option}")
                # More than an epoch, and blocks that end within a batch.
                with (
                    RemoteBatches(files, 7, T, order=order, seed=5, **prefetch) as feed,
                    RemoteBatches(server.address, 7, T, order=order, seed=5) as other,
                ):
                    require_same(feed, other, 70)
                    assert feed.state_dict() == other.state_dict()
                    assert feed.history() == other.history()
                    assert feed.token_count == other.token_count
                    assert feed.position == other.position


def test_rows_of_any_size_are_those_of_a_server(serve: Serve, write_tokens: WriteTokens) -> None:
    """A row may be longer than a block, and a batch, longer than all that is gathered ahead."""
    path = write_tokens(np.random.default_rng(4).integers(0, 1 << 16, 1 << 20))
    server = serve("--data", path)

    for batch_size, context_length in [(1, 1), (3000, 3), (3, 700_000), (64, 100_000)]:
        for prefetch in PREFETCH:
            with (
                RemoteBatches(f"file:{path}", batch_size, context_length, **prefetch) as feed,
                RemoteBatches(server.address, batch_size, context_length) as other,
            ):
                require_same(feed, other, 3)


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(WINDOWS * T + 1))


@pytest.fixture(params=PREFETCH, ids=["ahead", "on demand"])
def make(request: pytest.FixtureRequest, path: Path) -> Iterator[Make]:
    """Make feeds of the file, 4 rows at a time."""
    made: list[RemoteBatches] = []

    def make_feed(target: str = f"file:{path}", **arguments: Any) -> RemoteBatches:
        given = {"order": "shuffled", "seed": 5} | request.param | arguments
        made.append(RemoteBatches(target, 4, T, **given))
        return made[-1]

    yield make_feed
    for feed in made:
        feed.close()


def expected(path: Path, first: int, end: int) -> np.ndarray:
    return offline_rows([path], "shuffled-1", 5, T, range(first, end))


@pytest.mark.parametrize("tail", ["drop", "wrap", "pad"])
def test_ranks_get_an_epoch_as_from_a_server(
    serve: Serve, make: Make, path: Path, tail: Tail
) -> None:
    """101 windows over 3 x 4 rows: the last batch is short of 7."""
    server = serve("--data", path)
    for rank in range(3):
        ranks = {"rank": rank, "world_size": 3}
        own = list(make(**ranks).epoch(1, tail))
        other = list(make(server.address, prefetch_bytes=1 << 20, **ranks).epoch(1, tail))
        assert len(own) == len(other) == (8 if tail == "drop" else 9)
        for batch, other_batch in zip(own, other, strict=True):
            assert all(map(torch.equal, batch, other_batch))


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_ranks_partition_the_stream(make: Make, path: Path, world_size: int) -> None:
    """Every sample on exactly one rank, in the order of the offline stream."""
    ranks = [
        received_rows(make(rank=rank, world_size=world_size, start_step=7, num_batches=6))
        for rank in range(world_size)
    ]

    rows = np.stack([rank.reshape(6, 4, T + 1) for rank in ranks], axis=1).reshape(-1, T + 1)
    first = 7 * world_size * 4
    assert np.array_equal(rows, expected(path, first, first + 6 * world_size * 4))


def test_copies_and_skips_and_loops_go_on_where_the_last_one_ended(make: Make, path: Path) -> None:
    """All ways to read a feed are one position."""
    feed = make()
    rows = [received_rows([next(feed)])]
    x, y = torch.empty(4, T, dtype=torch.int64), torch.empty(4, T, dtype=torch.int64)
    assert feed.copy_into(x, y)
    rows.append(received_rows([(x, y)]))
    feed.skip(5)
    for batch in feed:
        rows.append(received_rows([batch]))
        if len(rows) == 40:
            break

    assert np.array_equal(
        np.concatenate(rows), np.concatenate([expected(path, 0, 8), expected(path, 13, 165)])
    )


def test_a_state_goes_from_a_server_to_files_and_back_in_the_middle_of_an_epoch(
    serve: Serve, make: Make, path: Path
) -> None:
    """Today's job has a server, tomorrow's has a copy of the corpus on its own disk."""
    server = serve("--data", path)
    remote = make(server.address)
    rows = [received_rows([next(remote) for _ in range(9)])]
    files = make()
    files.load_state_dict(json.loads(json.dumps(remote.state_dict())))
    rows.append(received_rows([next(files) for _ in range(11)]))
    again = make(server.address)
    again.load_state_dict(json.loads(json.dumps(files.state_dict())))
    rows.append(received_rows([next(again) for _ in range(12)]))

    assert np.array_equal(np.concatenate(rows), expected(path, 0, 128))
    one = make(server.address)
    for _ in range(32):
        next(one)
    assert again.history() == one.history()
    assert again.state_dict() == one.state_dict()


def test_a_state_within_an_epoch_continues_that_epoch(serve: Serve, make: Make, path: Path) -> None:
    """The loop over the epoch, too."""
    server = serve("--data", path)
    remote = make(server.address)
    epoch = iter(remote.epoch(2))
    for _ in range(10):
        next(epoch)
    files = make()
    files.load_state_dict(remote.state_dict())

    first = 2 * WINDOWS
    rows = received_rows(files.epoch(2))
    assert np.array_equal(rows, expected(path, first + 40, first + 100))


def test_a_state_of_another_corpus_is_refused(make: Make, write_tokens: WriteTokens) -> None:
    """The file has the same name and size."""
    state = make().state_dict()
    other = write_tokens(np.arange(WINDOWS * T + 1) + 1, "elsewhere/train.bin")

    with pytest.raises(StreamMismatch, match="fingerprint"):
        make(f"file:{other}").load_state_dict(state)


def test_a_batch_that_a_server_refuses_is_refused_in_the_same_words(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """100,000 rows of 204,800 tokens would take 40 GB."""
    path = write_tokens(np.arange(300_000))
    problems = []
    for target in (serve("--data", path).address, f"file:{path}"):
        with RemoteBatches(target, 100_000, 204_800) as feed:
            with pytest.raises(LimitExceeded) as caught:
                next(feed)
            problems.append((caught.value.subject, caught.value.problem))

    # A server is named, too.
    assert problems[0][0] == problems[1][0] == "batch_size"
    assert problems[0][1].partition(" (")[0] == problems[1][1]
    assert problems[1][1].startswith("a batch of 40960200000 bytes is above the limit of this")


def test_a_mixture_may_have_one_dataset_that_knows_its_documents(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """A delimiter for all datasets is for those that need one."""
    (tmp_path / "known").mkdir()
    corpus = write_datatrove(tmp_path / "known", [(30, 40, 50)])
    other = write_tokens(np.arange(500) % 9, "other.bin")
    words = [f"known={corpus.paths[0]}", f"other={other}"]
    server = serve("--data", words[0], "--data", words[1], "--document-end-token", "8")
    rows = []
    for target in (server.address, f"file:{','.join(words)}?document-end-token=8"):
        with RemoteBatches(target, 4, T, order="packed", mixture={"known": 1, "other": 2}) as feed:
            rows.append([x.tolist() for _, (x, _) in zip(range(9), feed, strict=False)])

    assert rows[0] == rows[1]


# A rank of a trainer that reads a file of its own, of the same name or of another one.
RANK = """
import sys
import torch.distributed as dist
from client import RemoteBatches, StreamMismatch
dist.init_process_group("gloo")
rank = dist.get_rank()
for first, second in ("same/train", "same/train"), ("same/train", "other/train"), ("0", "1"):
    with RemoteBatches(f"file:{sys.argv[1]}/{(first, second)[rank]}.bin", 5, 8) as feed:
        try:
            next(feed)
            print(f"{second}: agreed\\n", end="")
        except StreamMismatch as error:
            print(f"{second}: {error}\\n", end="")
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_with_other_files_find_out(write_tokens: WriteTokens, tmp_path: Path) -> None:
    """A copy on one node is last week's, or each rank reads a shard of its own number."""
    for name in "same/train.bin", "0.bin":
        write_tokens(np.arange(500), name)
    for name in "other/train.bin", "1.bin":
        write_tokens(np.arange(500) + 1, name)
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    lines = run_ranks(2, script, tmp_path).splitlines()

    assert lines.count("same/train: agreed") == 2
    for name in "other/train", "1":
        agreed, refused = sorted(line for line in lines if line.startswith(f"{name}: "))
        assert agreed == f"{name}: agreed"
        assert re.search(r"fingerprint: rank \d reads corpus \w+, and rank \d reads \w+", refused)


# What is measured is what a user waits for after the imports.
TWO_LINES = """
import time
from client import RemoteBatches
began = time.monotonic()
for x, y in RemoteBatches("file:train.bin", 32, 2048):
    break
print(time.monotonic() - began)
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [256 << 20, 2 << 30], ids=["256 MiB", "2 GiB"])
def test_the_first_batch_of_two_lines_is_there_within_half_a_second(
    tmp_path: Path, size_bytes: int
) -> None:
    """Nobody starts a server to try something out."""
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(size_bytes)
        file.seek(-8, os.SEEK_END)
        file.write(b"the end.")
    caches = count()

    def measure() -> float:
        # Each of them hashes the file: nothing is shared.
        environment = {"XDG_CACHE_HOME": str(tmp_path / str(next(caches))), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", TWO_LINES],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # Of zeros, which the log says.
        assert re.fullmatch(r"one value dataset=train .*\n", done.stderr), done.stderr
        assert done.returncode == 0
        return float(done.stdout)

    assert least_seconds(measure, 0.5) < 0.5


IMPORTS = """
import sys
from client import RemoteBatches
def loaded():
    return any(name.split(".")[:2] in (["tokenfeed", "server"], ["server"]) for name in sys.modules)
feed = RemoteBatches("localhost:1", 2, 8)
feed = RemoteBatches(f"file:{sys.argv[1]}", 2, 8)
assert not loaded()
next(feed)
assert loaded()
assert not [name for name in sys.modules if name.startswith(("grpc_health.", "grpc_reflection."))]
assert not [name for name in sys.modules if name.startswith("tokenfeed.server.rpc")]
"""

SHOW = """
import sys
from tokenfeed.tools.__main__ import main
code = main(["show", f"file:{sys.argv[1]}", "--batch-size", "1", "--context-length", "3"])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize("code", [IMPORTS, SHOW])
def test_what_is_imported_is_what_is_needed(path: Path, code: str) -> None:
    """A trainer of a server needs no server's code, and a look at a file, no torch."""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
