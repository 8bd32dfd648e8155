"""What does packing ten million documents cost, and what would a billion?

Each run is a fresh process, which packs web-like documents in shards, one after the other, and
times the steps: the histogram of lengths, the rows (`pack`), where pieces begin (`places`), and the
pieces of all rows (`Packing.pieces`). peak: the most memory of the process. The index: 8 bytes for
each piece and each row. A billion documents are reckoned: shards take time in proportion to their
number, and a process needs the memory of one shard.
Run: python -m benchmarks.packing_scale [--documents 10000000] [--shards 100000 10000000]
     [--context-lengths 2048 8192] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from statistics import median

import numpy as np

from benchmarks.packing_lengths import Numbers, drawn
from benchmarks.report import heading, print_load
from tokenfeed.sampling.packing import histogram, pack, places

STEPS = ("histogram", "pack", "places", "pieces")
BILLION = 10**9
RUN_SECONDS_MAX = 300.0


def main() -> None:
    """Print a row for each size of shard and context length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--context-lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(arguments.documents, *arguments.run)))
        return
    print_load("before")
    print(heading(f"{arguments.documents:,} documents, medians of {arguments.rounds}"))
    columns = [*(f"{step} s" for step in STEPS), "all s", "peak MiB", "before", "bytes", "rows +%"]
    columns += ["10^9: s", "index GB"]
    print(f"{'':34} {' '.join(f'{column:>11}' for column in columns)}")
    ways = [(shard, T) for shard in arguments.shards for T in arguments.context_lengths]
    runs: dict[tuple[int, int], list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way in ways[:: -1 if number % 2 else 1]:
            runs[way].append(fresh_run(arguments.documents, *way))
    for (shard, context_length), found in runs.items():
        figures = {name: median(one[name] for one in found) for name in found[0]}
        print(f"{f'{shard:,} a shard, T = {context_length}':34} {cells(arguments, figures)}")
    print_load("after")


def cells(arguments: argparse.Namespace, figures: dict[str, float]) -> str:
    """Return a row of the table."""
    times = [figures[step] for step in STEPS]
    more = BILLION / arguments.documents
    values = [f"{seconds:.3f}" for seconds in (*times, sum(times))]
    values += [f"{figures['peak']:.0f}", f"{figures['before']:.0f}"]
    values += [f"{figures['index'] / arguments.documents:.2f}", f"{100 * figures['more']:.3f}"]
    values += [f"{sum(times) * more:.0f}", f"{figures['index'] * more / 1e9:.1f}"]
    return " ".join(f"{value:>11}" for value in values)


def fresh_run(documents: int, shard: int, context_length: int) -> dict[str, float]:
    """Return what a fresh process measures."""
    command = [sys.executable, "-m", "benchmarks.packing_scale", "--documents", str(documents)]
    output = subprocess.run(
        [*command, "--run", str(shard), str(context_length)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=RUN_SECONDS_MAX,
    ).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def run(documents: int, shard: int, context_length: int) -> dict[str, float]:
    """Return the seconds of each step and the other figures, over all shards.

    peak, before: MiB, at the end, and of the process with the lengths of one shard.  index: bytes.
    more: rows, to those that the tokens of all pieces would fill without padding.
    """
    figures: Counter[str] = Counter()
    tokens = rows = 0
    before = 0.0
    for number in range(-(-documents // shard)):
        lengths = drawn("web", min(shard, documents - number * shard), seed=number)
        before = before or mebibytes()
        counts, row_count = timed(lengths, context_length, figures)
        rows += row_count
        tokens += int(counts @ np.arange(counts.size))
        figures["index"] += 8 * (int(counts.sum()) + row_count)
    more = rows / -(-tokens // (context_length + 1)) - 1
    return {**figures, "peak": mebibytes(), "before": before, "more": more}


def timed(lengths: Numbers, context_length: int, seconds: Counter[str]) -> tuple[Numbers, int]:
    """Pack one shard, and add the time of each step.  Returns: the histogram, and the rows."""
    starts = np.cumsum(lengths) - lengths
    moments = [time.perf_counter()]
    counts = histogram(lengths, context_length)
    moments.append(time.perf_counter())
    packing = pack(counts)
    moments.append(time.perf_counter())
    begins = places(starts, lengths, context_length)
    moments.append(time.perf_counter())
    pieces = packing.pieces(np.arange(packing.row_count))
    moments.append(time.perf_counter())
    assert begins.size == pieces[1].size == counts.sum()
    seconds.update(dict(zip(STEPS, np.diff(moments).tolist(), strict=True)))
    return counts, packing.row_count


def mebibytes() -> float:
    """Return the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
