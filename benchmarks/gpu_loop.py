"""Does a GPU ever wait for its data? A training-like loop of 5 million tokens/s, fed from a server.

The same loop runs on batches that are already on the device, before and after, to show the noise,
and on nanoGPT's `get_batch`, whose batches it pins and copies as train.py does. Once it reads its
loss after each step, and once after every tenth, as most do.
Run: python -m benchmarks.gpu_loop [--target HOST:PORT] [--steps 500]
Target: within 0.5 % of the loop on resident data, p99 of the wait for a batch under 1 ms.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import nanogpt
from benchmarks.report import machine, print_table
from benchmarks.serving import folder_on_disk, served, write_corpus
from client import RemoteBatches

B, T = 32, 2048
TOKENS_PER_SECOND = 5e6
STEPS = 500
STEPS_A_READ = (1, 10)
"""Steps after which the loop reads its loss, and so waits for the device."""
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
        run(arguments.target, arguments.steps, None)
        return
    with folder_on_disk() as folder:
        path = write_corpus(folder / "train.bin", CORPUS_BYTES)
        with served("--data", path) as server:
            run(server.address, arguments.steps, path)


def run(target: str, steps: int, path: Path | None) -> None:
    """Measure the loops alternately and print them.  path: what the server of target serves."""
    work = Work()
    print(f"{torch.cuda.get_device_name(DEVICE)}, {work.products} products a step")
    with RemoteBatches(target, B, T, device=DEVICE) as feed:
        resident = itertools.cycle([next(feed) for _ in range(8)])
        contenders: dict[str, Iterator[Batch]] = {"resident": resident, "fed": feed}
        if path is not None:
            contenders["get_batch"] = local_batches(path)
        contenders["resident again"] = resident
        for steps_a_read in STEPS_A_READ:
            compare(contenders, work, steps, steps_a_read)


def compare(
    contenders: dict[str, Iterator[Batch]], work: Work, steps: int, steps_a_read: int
) -> None:
    """Measure some contenders alternately and print their seconds and their waits."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    waits: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, batches in contenders.items():
            taken, waited = loop(batches, work, steps, steps_a_read)
            seconds[name].append(taken)
            waits[name] += waited
    print_table(f"{steps} steps of {B} x {T} tokens, read every {steps_a_read}", "s", seconds)
    first = statistics.median(seconds["resident"])
    for name in list(contenders)[1:]:
        percent = 100 * (statistics.median(seconds[name]) / first - 1)
        p50, p99 = 1e3 * np.percentile(waits[name], (50, 99))
        print(f"{name}: {percent:+.2f} %, wait for a batch p50 {p50:.3f} ms, p99 {p99:.3f} ms")


def local_batches(path: Path) -> Iterator[Batch]:
    """Yield nanoGPT's batches, brought to the device as its train.py brings them."""
    while True:
        x, y = nanogpt.get_batch(path)
        yield (
            x.pin_memory().to(DEVICE, non_blocking=True),
            y.pin_memory().to(DEVICE, non_blocking=True),
        )


def loop(
    batches: Iterator[Batch], work: Work, steps: int, steps_a_read: int
) -> tuple[float, list[float]]:
    """Return the seconds that steps took, and how long each waited for its batch.

    steps_a_read: after so many steps it waits for the device. Where the host runs ahead in between,
    it waits for the device in `next` too, and that is no wait for data.
    """
    waits = []
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for step in range(1, steps + 1):
        wait_began = time.perf_counter()
        x, y = next(batches)
        waits.append(time.perf_counter() - wait_began)
        work.step(x, y)
        if step % steps_a_read == 0:
            torch.cuda.synchronize()
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
