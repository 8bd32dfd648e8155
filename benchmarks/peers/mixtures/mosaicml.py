"""MosaicML streaming: a StreamingDataset of three Streams with proportions.

Sources: docs.mosaicml.com/projects/streaming ("Mixing datasets", "Elastic determinism", "Fast
resumption") and llmfoundry/callbacks/dataset_swap_callback.py of github.com/mosaicml/llm-foundry.
The ranks are processes, as StreamingDataset expects them; each has a StreamingDataLoader with one
worker, whose state_dict is saved and loaded. No way to change proportions during an epoch is
documented. Two ways are in use: `state kept` loads the state into a dataset with the new
proportions, as Composer does when a run resumes with an edited configuration; `new epoch` begins
the first epoch of a new dataset, as the callback DatasetSwap of llm-foundry does. `stratified`
instead of the default `random` batching gives every batch its shares. `2 x 16` resumes with the
same global batch size, which the library requires for an elastically deterministic order.
An epoch has as many rows as the run.
Orders: no order of a source outlives a change of proportions. After the change, the order of a
source is that in which the same loaders deliver it when they are not stopped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mixture_counts import SOURCE_ROWS, Codes, Order
from benchmarks.mixture_run import (
    AFTER,
    BATCH_SIZE,
    BEFORE,
    CHANGE_STEP,
    CHANGED,
    RANKS,
    RESUMED_BATCH_SIZE,
    RESUMED_RANKS,
    ROW_TOKENS,
    SOURCES,
    STOP_STEP,
    TOTAL,
    Delivered,
    codes,
    concatenated,
    main,
    resumed_steps,
    rows_of,
)
from benchmarks.peers.mosaicml import require_torchvision

SETTINGS = {
    "state kept": {"kept": True},
    "new epoch": {},
    "new epoch, stratified": {"batching": "stratified"},
    "new epoch, stratified, 2 x 16": {"batching": "stratified", "resumed_batch_size": 16},
}

SHARD_BYTES = 1 << 12
"""Some 300 rows: a small run has to have many shards too, or the shuffle spreads rows unevenly."""

State = dict[str, Any]


def run(
    folder: Path,
    seed: int,
    *,
    kept: bool = False,
    batching: str = "random",
    resumed_batch_size: int = RESUMED_BATCH_SIZE,
) -> Delivered:
    """Run the loaders of all ranks in processes."""
    # Imported before the ranks are forked, which is done once for each part of the run.
    require_torchvision()
    write_shards(folder)
    options = {
        "epoch_size": TOTAL,
        "shuffle": True,
        "shuffle_seed": 9176 + seed,
        "batching_method": batching,
    }
    rows, state = deliver(folder, BEFORE, options, None, RANKS, BATCH_SIZE, CHANGE_STEP)
    start = state if kept else None
    steps = STOP_STEP - CHANGE_STEP
    more, state = deliver(folder, AFTER, options, start, RANKS, BATCH_SIZE, steps)
    steps = resumed_steps(RESUMED_RANKS, resumed_batch_size)
    rest, _ = deliver(folder, AFTER, options, state, RESUMED_RANKS, resumed_batch_size, steps)
    never_stopped, _ = deliver(folder, AFTER, options, start, RANKS, BATCH_SIZE, None)
    return Delivered(
        rows + more + rest, [Order(CHANGED, TOTAL, own) for own in split(never_stopped)]
    )


def split(rows: Sequence[int]) -> list[list[int]]:
    """Return the rows of each source, each one where it comes first."""
    once = dict.fromkeys(rows)
    return [[row for row in once if row // SOURCE_ROWS == source] for source in range(len(SOURCES))]


def write_shards(folder: Path) -> None:
    """Write the rows of each source as a folder of MDS shards."""
    from streaming import MDSWriter

    columns = {"tokens": f"ndarray:uint16:{ROW_TOKENS}"}
    for name in SOURCES:
        with MDSWriter(out=str(folder / name), columns=columns, size_limit=SHARD_BYTES) as writer:
            for row in rows_of(folder, name):
                writer.write({"tokens": np.ascontiguousarray(row)})


def deliver(
    folder: Path,
    weights: Sequence[int],
    options: State,
    state: State | None,
    ranks: int,
    batch_size: int,
    steps: int | None,
) -> tuple[list[int], State]:
    """Return the rows of all ranks, and the state of rank 0 after the last step.

    steps: None is until the epoch ends.
    """
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Each rank waits for the others, so each one gets a process of its own.
    with ProcessPoolExecutor(ranks, get_context("fork")) as pool:
        futures = [
            pool.submit(
                deliver_rank, rank, ranks, port, folder, weights, options, state, batch_size, steps
            )
            for rank in range(ranks)
        ]
        parts = [future.result() for future in futures]
    together = zip(*(batches for batches, _ in parts), strict=True)
    return [row for step in together for row in concatenated(step)], parts[0][1]


def deliver_rank(
    rank: int,
    ranks: int,
    port: int,
    folder: Path,
    weights: Sequence[int],
    options: State,
    state: State | None,
    batch_size: int,
    steps: int | None,
) -> tuple[list[Codes], State]:
    """Return the batches of one rank, and its state after the last one. Runs in its process."""
    from streaming import Stream, StreamingDataLoader, StreamingDataset

    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    streams = [
        Stream(local=str(folder / name), proportion=weight / 100)
        for name, weight in zip(SOURCES, weights, strict=True)
    ]
    dataset = StreamingDataset(streams=streams, batch_size=batch_size, **options)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=1, drop_last=True)
    if state is not None:
        loader.load_state_dict(state)
    batches = [codes(batch["tokens"]) for batch in islice(loader, steps)]
    if steps is not None and len(batches) < steps:
        raise RuntimeError(f"the epoch ended after {len(batches)} of {steps} steps")
    saved = loader.state_dict()
    assert saved is not None
    return batches, saved


if __name__ == "__main__":
    main(run, SETTINGS)
