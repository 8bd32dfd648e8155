"""How fast are rows by their index, against a memory map?

10,000 random rows of 2,048 tokens and the one after them, as x and y in int64: one at a time, and
32 at a time, as a DataLoader asks for a batch. From `feed.as_dataset()` of a server on this
machine and of local files, and from np.memmap, whose rows are widened in the same way.
Run: python -m benchmarks.random_rows [--rows 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.contender import serving
from benchmarks.report import print_load, print_table
from benchmarks.rows import CONTEXT_LENGTH, windows, write_corpus
from client import RemoteBatches

TOKENS = 1 << 26
Take = Callable[[Sequence[int]], object]


def main() -> None:
    """Print rows per second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print_load("before")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        write_corpus(path, TOKENS)
        command = ("server", "--data", str(path), "--host", "127.0.0.1", "--port", "0")
        with serving(*command) as address:
            takes = {"memmap": of_map(path)}
            takes |= {
                name: of_feed(target)
                for name, target in (("files", f"file:{path}"), ("server", address))
            }
            rates: dict[str, list[float]] = {}
            for _ in range(arguments.rounds):
                for at_once in (1, 32):
                    for name, take in takes.items():
                        found = rate(take, arguments.rows, at_once)
                        rates.setdefault(f"{name}, {at_once} at once", []).append(found / 1000)
    print_table(f"{arguments.rows} random rows", "thousand rows/s", rates)
    print_load("after")


def rate(take: Take, rows: int, at_once: int) -> float:
    """Return rows per second.  take: reads some rows of the first TOKENS // CONTEXT_LENGTH - 1."""
    indices = np.random.default_rng(2).integers(0, TOKENS // CONTEXT_LENGTH - 1, rows).tolist()
    take(indices[:at_once])
    began = time.monotonic()
    for first in range(0, rows, at_once):
        take(indices[first : first + at_once])
    return rows / (time.monotonic() - began)


def of_feed(target: str) -> Take:
    """Return what reads rows of a dataset of a feed."""
    dataset = RemoteBatches(
        target, 32, CONTEXT_LENGTH, order="shuffled", rank=0, world_size=1
    ).as_dataset()
    return dataset.__getitems__


def of_map(path: Path) -> Take:
    """Return what reads windows of a mapped file."""
    all_windows = windows(path)

    def take(indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows = (all_windows[index * CONTEXT_LENGTH].astype(np.int64) for index in indices)
        return [(torch.from_numpy(row[:-1]), torch.from_numpy(row[1:])) for row in rows]

    return take


if __name__ == "__main__":
    main()
