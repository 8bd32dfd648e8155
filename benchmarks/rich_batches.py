"""What do documents and masks cost, against plain pairs?

Batches of 32 x 2048 as int64, one client and one server on this machine. A corpus of documents of
700 tokens on average is served without anything beside it, and with borders and a loss mask, which
leaves out the first 30 % of each document. Settings: pairs of the plain corpus, also as arrays of
NumpyBatches; pairs with the loss mask applied; `feed.batches()` with borders and mask, unpacked as
x, y; and the same with positions and cu_seqlens of each batch. Each run is a fresh client of a
fresh server; the settings alternate. Ratios refer to the plain pairs of RemoteBatches.
Run: python -m benchmarks.rich_batches [--rounds 5] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contender import fresh_run, measure, serving
from benchmarks.delivered import by_round, verdict
from benchmarks.report import print_load, print_table
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, write_corpus
from client import NumpyBatches, RemoteBatches

TOKENS = 1 << 28
MEAN_TOKENS = 700
PROMPT_SHARE = 0.3
PAIRS = "pairs"
TARGETS = {
    "numpy, int64": 1.0,
    "numpy, int32": 1.0,
    "pairs, masked": None,
    "batches": 0.9,
    "batches, positions": None,
}


def main() -> None:
    """Print the rates and the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="after the first")
    parser.add_argument("--order", default="shuffled")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in the corpus")
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "SETTING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(Path(arguments.run[0]), arguments.run[1], arguments)))
        return
    print_load("before")
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder), arguments.tokens)
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for setting in (PAIRS, *TARGETS):
                found = fresh_run("rich_batches", folder, setting, arguments)
                rates.setdefault(setting, []).append(found["after"] / 1e6)
        print_table(f"delivered, {arguments.order}", "Mtok/s", rates)
    for setting, target in TARGETS.items():
        ratios = [ours / base for ours, base in zip(rates[setting], rates[PAIRS], strict=True)]
        ratio = median(rates[setting]) / median(rates[PAIRS])
        aim = f"{verdict(ratio >= target, f'{target:g}')}; " if target else ""
        print(f"{setting} / {PAIRS}: {ratio:.2f} ({aim}{by_round(ratios)})")
    print_load("after")


def run(folder: Path, setting: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a setting."""
    numpy = setting.startswith("numpy")
    name = "plain.bin" if setting == PAIRS or numpy else "documents.ds"
    shape = BATCH_SIZE, CONTEXT_LENGTH
    command = ("server", "--data", str(folder / name), "--host", "127.0.0.1", "--port", "0")
    with (
        serving(*command, "--log-level", "warning") as address,
        NumpyBatches(address, *shape, dtype=setting[-5:], order=arguments.order)
        if numpy
        else RemoteBatches(address, *shape, order=arguments.order) as feed,
    ):
        batches: Iterator[object] = feed
        if setting.startswith("batches"):
            batches = unpacked(feed.batches(), with_positions="positions" in setting)
        return measure(batches, arguments.seconds)[0]


def unpacked(batches: Iterator[Any], *, with_positions: bool) -> Iterator[object]:
    """Yield what a training loop takes of each batch."""
    for batch in batches:
        x, y = batch
        yield (x, y, batch.positions, batch.cu_seqlens) if with_positions else (x, y)


def write_documents(folder: Path, tokens: int) -> None:
    """Write a corpus twice: plain, and with an index of documents and a loss mask."""
    write_corpus(folder / "plain.bin", tokens)
    (folder / "documents.ds").hardlink_to(folder / "plain.bin")
    random = np.random.default_rng(1)
    lengths = 1 + random.geometric(1 / MEAN_TOKENS, 2 * tokens // MEAN_TOKENS)
    ends = np.cumsum(lengths)
    ends = np.append(ends[ends < tokens], tokens)
    ends.astype("<u8").tofile(folder / "documents.ds.index")
    lengths = np.diff(ends, prepend=0)
    prompts = (PROMPT_SHARE * lengths).astype(np.int64)
    runs = np.stack([prompts, lengths - prompts], axis=1).reshape(-1)
    mask = np.repeat(np.tile(np.array([0, 1], np.uint8), lengths.size), runs)
    mask.tofile(folder / "documents.ds.loss")


if __name__ == "__main__":
    main()
