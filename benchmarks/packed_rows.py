"""What do rows of documents cost, against shuffled windows of the same corpus?

Batches of 32 x 2048 as int64, one client and one server on this machine, which both share. Corpora
of documents of log-normal lengths, as of web pages and of short exchanges (packing_lengths.py), in
memory. Settings: shuffled, packed and padded. Rows of documents are made before the first run. Each
run is a fresh client of a fresh server; the settings alternate. Ratios refer to shuffled.
Run: python -m benchmarks.packed_rows [--rounds 5] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.contender import fresh_run, measure, serving
from benchmarks.delivered import by_round, verdict
from benchmarks.packing_lengths import LOG_NORMAL, drawn
from benchmarks.report import print_load, print_table
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, write_corpus
from client import RemoteBatches

TOKENS = 1 << 28
WINDOWS = "shuffled"
TARGETS = {("web", "packed"): 0.8, ("web", "padded"): None}
TARGETS |= {("chat", "packed"): None, ("chat", "padded"): None}


def main() -> None:
    """Print the rates and the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="after the first")
    parser.add_argument("--order", default=WINDOWS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in each corpus")
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "SETTING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        folder, setting = arguments.run
        print(json.dumps(run(Path(folder), *setting.split(), arguments.seconds)))
        return
    print_load("before")
    with tempfile.TemporaryDirectory() as folder:
        rates: dict[tuple[str, str], list[float]] = {}
        for kind in LOG_NORMAL:
            write_documents(Path(folder), kind, arguments.tokens)
            for order in ("packed", "padded"):
                run(Path(folder), kind, order, 0.0)
        for _ in range(arguments.rounds):
            for kind in LOG_NORMAL:
                for order in (WINDOWS, "packed", "padded"):
                    found = fresh_run("packed_rows", folder, f"{kind} {order}", arguments)
                    rates.setdefault((kind, order), []).append(found["after"] / 1e6)
        named = {" ".join(setting): found for setting, found in rates.items()}
        print_table("delivered, padding included", "Mtok/s", named)
    for (kind, order), target in TARGETS.items():
        pairs = zip(rates[kind, order], rates[kind, WINDOWS], strict=True)
        ratio = median(rates[kind, order]) / median(rates[kind, WINDOWS])
        aim = f"{verdict(ratio >= target, f'{target:g}')}; " if target else ""
        each = by_round([ours / base for ours, base in pairs])
        print(f"{kind}, {order} / {WINDOWS}: {ratio:.2f} ({aim}{each})")
    print_load("after")


def run(folder: Path, kind: str, order: str, seconds: float) -> dict[str, float]:
    """Return the figures of an order of a corpus."""
    command = ("server", "--data", str(folder / f"{kind}.ds"), "--host", "127.0.0.1", "--port", "0")
    with (
        serving(*command, "--log-level", "warning") as address,
        RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH, order=order) as feed,
    ):
        return measure(feed, seconds)[0]


def write_documents(folder: Path, kind: str, tokens: int) -> None:
    """Write a corpus with an index of its documents."""
    write_corpus(folder / f"{kind}.ds", tokens)
    median_tokens, _ = LOG_NORMAL[kind]
    ends = np.cumsum(drawn(kind, int(2 * tokens / median_tokens)))
    ends = np.append(ends[ends < tokens], tokens)
    ends.astype("<u8").tofile(folder / f"{kind}.ds.index")


if __name__ == "__main__":
    main()
