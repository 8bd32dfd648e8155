"""Any position resumes anywhere: other batch sizes, other world sizes, other processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches, StreamMismatch
from tests.conftest import Serve, WriteTokens
from tests.support import forked
from tests.support.offline import offline_rows, received_rows
from tests.support.ports import free_port

T = 8

ORDERS = ["random", "shuffled", "sequential"]

# Trainers, each in a process of its own, a fork from one that has imported torch: they save their
# rows.
TRAINERS = """
import os, sys
import numpy as np
from client import RemoteBatches
target, start_sample, batch_size, world_size, num_batches, out, *orders = sys.argv[1:]

def train(order, rank):
    with RemoteBatches(target, int(batch_size), 8, order=order, seed=9, rank=rank,
                       world_size=int(world_size), start_sample=int(start_sample),
                       num_batches=int(num_batches)) as feed:
        rows = np.stack([np.concatenate([x, y[:, -1:]], axis=1) for x, y in feed])
    np.save(f"{out}/{order}-{rank}", rows)
    os._exit(0)

for order in orders:
    for rank in range(int(world_size)):
        os.fork() or train(order, rank)
    assert not any([os.wait()[1] for _ in range(int(world_size))])
"""


@pytest.mark.slow
def test_a_run_goes_on_at_any_batch_size_and_world_size(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """8 x 32, then 6 x 32, then 5 x 7, a new process and server each, over ends of epochs."""
    path = write_tokens(np.random.default_rng(0).integers(0, 50_000, 8 * 500 + 1))
    script = tmp_path / "trainers.py"
    script.write_text(TRAINERS)
    first_sample = 300
    pieces: dict[str, list[np.ndarray]] = {order: [] for order in ORDERS}
    for phase, (world_size, batch_size, steps) in enumerate([(8, 32, 2), (6, 32, 1), (5, 7, 3)]):
        server = serve("--data", path)
        out = tmp_path / str(phase)
        out.mkdir()
        numbers = map(str, (first_sample, batch_size, world_size, steps))
        done = forked.run(script, server.address, *numbers, out, *ORDERS, timeout=100)
        assert done.returncode == 0, done.stderr
        for order in ORDERS:
            ranks = [np.load(out / f"{order}-{rank}.npy") for rank in range(world_size)]
            # [step, rank, row]: the order of samples.
            pieces[order].append(np.stack(ranks, axis=1).reshape(-1, T + 1))
        first_sample += steps * world_size * batch_size
        assert server.stop() == 0

    assert first_sample - 300 == 512 + 192 + 105
    for order in ORDERS:
        expected = offline_rows([path], f"{order}-1", 9, T, range(300, first_sample))
        assert np.array_equal(np.concatenate(pieces[order]), expected), order


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_partition_the_stream(
    serve: Serve, write_tokens: WriteTokens, world_size: int
) -> None:
    """Every sample on exactly one rank, in the order of the offline stream."""
    path = write_tokens(np.random.default_rng(1).integers(0, 50_000, 5000))
    server = serve("--data", path)

    ranks = []
    for rank in range(world_size):
        with RemoteBatches(
            server.address, 5, T, rank=rank, world_size=world_size, start_step=7, num_batches=6
        ) as feed:
            ranks.append(received_rows(feed).reshape(6, 5, T + 1))

    rows = np.stack(ranks, axis=1).reshape(-1, T + 1)
    first = 7 * world_size * 5
    expected = offline_rows([path], "shuffled-1", 0, T, range(first, first + 6 * world_size * 5))
    assert np.array_equal(rows, expected)


def test_a_server_that_is_briefly_away_is_waited_for(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Killed in the middle of a stream and restarted on the same port, unnoticed."""
    path = write_tokens(np.random.default_rng(2).integers(0, 50_000, 200_000))
    port = free_port()
    server = serve("--data", path, port=port)
    feed = RemoteBatches(server.address, 4, 1024, num_batches=600, prefetch_bytes=1 << 16)

    rows = [received_rows([next(feed)]) for _ in range(100)]
    server.process.kill()
    server.process.wait()
    again = serve("--data", path, port=port)
    rows += [received_rows([batch]) for batch in feed]

    assert again.process.poll() is None
    expected = offline_rows([path], "shuffled-1", 0, 1024, range(2400))
    assert np.array_equal(np.concatenate(rows), expected)


def test_a_server_that_is_not_there_yet_is_waited_for(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Trainer and server are started together, in any order."""
    path = write_tokens(range(1000))
    port = free_port()
    feed = RemoteBatches(f"localhost:{port}", 2, T, num_batches=3)

    with ThreadPoolExecutor(1) as thread:
        batches = thread.submit(list, feed)
        serve("--data", path, port=port)

        assert len(batches.result()) == 3


def test_a_corpus_swapped_behind_a_running_stream_is_refused(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Other tokens under the same name: never silently."""
    path = write_tokens(np.arange(20_000))
    port = free_port()
    server = serve("--data", path, port=port)
    feed = RemoteBatches(server.address, 4, 1024, prefetch_bytes=1 << 15)
    next(feed)
    assert server.stop() == 0
    other = np.arange(20_000)
    other[7] = 8
    serve("--data", write_tokens(other), port=port)

    with pytest.raises(StreamMismatch, match="another corpus"):
        list(feed)
    feed.close()
