"""Does a GPU ever wait for its data? A training-like loop of 5 million tokens/s, fed from a server.

The same loop runs on batches that are already on the device, before and after, to show the noise.
Run: python -m benchmarks.gpu_loop [--target HOST:PORT] [--steps 2000]
Target: within 0.5 % of the loop on resident data, p99 of the wait for a batch under 1 ms.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.report import machine, print_table
from benchmarks.serving import folder_on_disk, served, write_corpus
from client import RemoteBatches

B, T = 32, 2048
TOKENS_PER_SECOND = 5e6
STEPS = 2000
ROUNDS = 5
WIDTH = 4096
CORPUS_BYTES = 500_000_000
DEVICE = "cuda:0"

Batch = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    """Print the seconds of each loop, and the wait for a batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="HOST:PORT of a server (default: start one)")
    parser.add_argument("--steps", type=int, default=STEPS, help="(default: %(default)s)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"skipped: torch sees no CUDA device on this machine ({machine()})")
        return
    if arguments.target:
        run(arguments.target, arguments.steps)
        return
    with (
        folder_on_disk() as folder,
        served("--data", write_corpus(folder / "train.bin", CORPUS_BYTES)) as server,
    ):
        run(server.address, arguments.steps)


def run(target: str, steps: int) -> None:
    """Measure the loops alternately and print them."""
    work = Work()
    seconds: dict[str, list[float]] = {"resident": [], "fed": [], "resident again": []}
    waits: list[float] = []
    with RemoteBatches(target, B, T, device=DEVICE) as feed:
        resident = [next(feed) for _ in range(8)]
        for _ in range(ROUNDS):
            for name in seconds:
                batches: Iterator[Batch] = feed if name == "fed" else itertools.cycle(resident)
                taken, waited = loop(batches, work, steps)
                seconds[name].append(taken)
                waits += waited if name == "fed" else []
    print(f"{torch.cuda.get_device_name(DEVICE)}, {work.products} products a step")
    print_table(f"{steps} steps of {B} x {T} tokens", "s", seconds)
    median = {name: statistics.median(figures) for name, figures in seconds.items()}
    print(f"fed against resident: {100 * (median['fed'] / median['resident'] - 1):+.2f} %", end=" ")
    print(f"(again: {100 * (median['resident again'] / median['resident'] - 1):+.2f} %)")
    print(f"wait for a batch: p50 {1e3 * float(np.percentile(waits, 50)):.3f} ms", end=", ")
    print(f"p99 {1e3 * float(np.percentile(waits, 99)):.3f} ms, of {len(waits):,}")


def loop(batches: Iterator[Batch], work: Work, steps: int) -> tuple[float, list[float]]:
    """Return the seconds that steps took, and how long each waited for its batch."""
    waits = []
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        wait_began = time.perf_counter()
        x, y = next(batches)
        waits.append(time.perf_counter() - wait_began)
        work.step(x, y)
        # Like a loop that reads its loss. Without this the host would run ahead until it waits for
        # the device, in `next` or elsewhere, and that is not a wait for data.
        torch.cuda.synchronize()
    return time.perf_counter() - begun, waits


class Work:
    """A step whose number of matrix products gives TOKENS_PER_SECOND."""

    def __init__(self) -> None:
        """Measure how many products that takes."""
        self._weights = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
        self._embedding = torch.randn(65_536, 64, device=DEVICE, dtype=torch.bfloat16)
        self.products = 200
        x = torch.zeros(B, T, dtype=torch.int64, device=DEVICE)
        for _ in range(2):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(20):
                self.step(x, x)
            torch.cuda.synchronize()
            step_seconds = (time.perf_counter() - begun) / 20
            self.products = max(1, round(self.products * B * T / TOKENS_PER_SECOND / step_seconds))

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Read every token, and compute."""
        torch.nn.functional.embedding(x, self._embedding).sum()
        y.sum()
        product = self._weights
        for _ in range(self.products):
            product = self._weights @ product
            product = product / product.norm()


if __name__ == "__main__":
    main()
