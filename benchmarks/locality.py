"""How far apart are consecutive samples, and how much of the corpus do they need? By order.

Decides GROUP_TOKENS in client/feed/mixture/recipe.py and docs/decisions/0022-blocks.md. Reads no
file: a corpus is a list of sizes. `blocks` has groups of 2^29 tokens. Beside it are two orders with
the same memory: a shuffle buffer of 2^29 tokens behind shards in a shuffled order (tf.data, Hugging
Face), and one that moves each window of such shards by up to half of 2^29 tokens (py1e of MosaicML
Streaming), both written again here from their descriptions.
Run: python -m benchmarks.locality
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.report import print_columns
from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.stream import Stream

Numbers = npt.NDArray[np.int64]

T = 2048
SHARD_WINDOWS = 1 << 14
"""A shard of 64 MiB, the default of MosaicML Streaming."""
SHARDS = 600
MEMORY_WINDOWS = (1 << 29) // T
BLOCK_WINDOWS = (1 << 19) // T
BATCH = 1024
WINDOWS = SHARDS * SHARD_WINDOWS
FIRST = WINDOWS // 3
"""Where samples are looked at: far from both ends of the epoch."""
SEEN = 1 << 18
ROUNDS = 3
COLUMNS = ("median %", "below 5 %", "same blk", "pairs", "blocks", "corpus %")


def main() -> None:
    """Print a row for each order, the median of some seeds."""
    rows = {
        name: np.median([statistics(windows(seed)) for seed in range(ROUNDS)], axis=0).tolist()
        for name, windows in CONTENDERS.items()
    }
    title = f"{WINDOWS:,} windows of {T:,} tokens, {SEEN:,} samples from a third of the epoch on"
    print_columns(title, COLUMNS, rows)
    print(
        "median %: distance between consecutive samples, median, of the length of the corpus\n"
        "below 5 %: consecutive samples closer than that, in percent\n"
        "same blk: consecutive samples within 2^19 tokens, in percent\n"
        f"pairs: pairs of a batch of {BATCH:,} within the same 2^19 tokens\n"
        f"blocks: blocks of 2^19 tokens that a batch of {BATCH:,} needs\n"
        f"corpus %: part of the corpus that {MEMORY_WINDOWS:,} samples (2^29 tokens) need"
    )


def statistics(window: Numbers) -> list[float]:
    """Return a figure for each column.  window: int64[SEEN], of each sample."""
    distance = np.abs(np.diff(window)) / WINDOWS
    block = window // BLOCK_WINDOWS
    batches = np.sort(block.reshape(-1, BATCH), axis=1)
    counts = [np.unique(batch, return_counts=True)[1] for batch in batches]
    needed = np.unique(block[:MEMORY_WINDOWS]).size
    return [
        100 * float(np.median(distance)),
        100 * float(np.mean(distance < 0.05)),
        100 * float(np.mean(block[1:] == block[:-1])),
        float(np.mean([(each * (each - 1) // 2).sum() for each in counts])),
        float(np.mean([each.size for each in counts])),
        100 * needed * BLOCK_WINDOWS / WINDOWS,
    ]


def of_order(name: str) -> Callable[[int], Numbers]:
    """Return what returns the windows of an order of this package, by seed."""
    shape = Shape(np.full(SHARDS, SHARD_WINDOWS * T + 1, dtype=np.int64))

    def windows(seed: int) -> Numbers:
        stream = Stream.of_dataset("", orders.latest(name), seed, T)
        spans = plan(stream, [shape], np.arange(FIRST, FIRST + SEEN))
        return spans.shard * SHARD_WINDOWS + spans.token_offset // T

    return windows


def in_shuffled_shards(seed: int) -> tuple[np.random.Generator, Numbers]:
    """Return a generator, and all windows, shard by shard in a shuffled order."""
    rng = np.random.default_rng(seed)
    shards = rng.permutation(SHARDS)
    windows = shards[:, np.newaxis] * SHARD_WINDOWS + np.arange(SHARD_WINDOWS)
    return rng, windows.ravel()


def buffer(seed: int) -> Numbers:
    """Return the windows out of a shuffle buffer that has been full for three times its size."""
    rng, windows = in_shuffled_shards(seed)
    coming = windows[FIRST - 4 * MEMORY_WINDOWS :].tolist()
    held = coming[:MEMORY_WINDOWS]
    picks = rng.integers(0, MEMORY_WINDOWS, 3 * MEMORY_WINDOWS + SEEN).tolist()
    found = []
    for pick, following in zip(picks, coming[MEMORY_WINDOWS:], strict=False):
        found.append(held[pick])
        held[pick] = following
    return np.array(found[-SEEN:])


def py1e(seed: int) -> Numbers:
    """Return the windows of shards that overlap: each moves by up to half of the memory."""
    rng, windows = in_shuffled_shards(seed)
    radius = MEMORY_WINDOWS / 2
    moved = np.arange(WINDOWS) + rng.uniform(-radius, radius, WINDOWS)
    return windows[np.argsort(moved)][FIRST : FIRST + SEEN]


CONTENDERS = {
    "shuffled": of_order("shuffled"),
    "blocks": of_order("blocks"),
    "py1e": py1e,
    "buffer": buffer,
    "sequential": of_order("sequential"),
}


if __name__ == "__main__":
    main()
