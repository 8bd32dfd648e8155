"""How fast do batches arrive, against everything that people use today?

One consumer, batches of 32 x 2048, delivered as int64 (x, y) on the CPU, servers on the same
machine. Every figure is of a process of its own; contenders take turns; the first second is
reported apart. Run: python -m benchmarks.delivered [--rounds 5] [--seconds 3] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.dataloader import SETTINGS
from benchmarks.report import print_table

TOKENS = 250_000_000

SERVED = ("tcp", "tokenfeed", "bare_grpc", "flight")
LOCAL = ("nanogpt", *(f"dataloader:{setting}" for setting in SETTINGS))
OPTIONAL = {"grain_peer": "grain", "litdata_peer": "litdata"}
"""Contender -> what to install, and to import."""

TARGETS = (
    ("tcp", 0.8, "raw TCP, not widened"),
    ("flight", 1.2, "Arrow Flight"),
    ("nanogpt", 5.0, "nanoGPT's get_batch"),
    ("dataloader", 3.0, "the best DataLoader"),
)


def main() -> None:
    """Print a table, and each target beside what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="after the first one (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contenders alone")
    arguments = parser.parse_args()
    missing = {name for name, module in OPTIONAL.items() if not importlib.util.find_spec(module)}
    names = [name for name in (*SERVED, *LOCAL, *OPTIONAL) if name not in missing]
    names = [name for name in names if not arguments.only or name in arguments.only]
    first, after = measured(names, arguments.rounds, arguments.seconds)
    print_table("delivered batches of 32 x 2048, after the first second", "Mtok/s", after)
    print_table("the same, in the first second", "Mtok/s", first)
    for name in sorted(missing):
        print(f"not installed: {name} (pip install {OPTIONAL[name]})")
    print_targets({name: statistics.median(figures) for name, figures in after.items()})
    if "tokenfeed" in after:
        own = after["tokenfeed"]
        print(f"slowest of {len(own)} processes: {min(own) / statistics.median(own):.2f} of median")


def measured(
    names: list[str], rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the figures of the first second, and of those after it, a round each."""
    first: dict[str, list[float]] = {name: [] for name in names}
    after: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50_257, TOKENS, dtype=np.uint16).tofile(path)
        sources = {
            name: servers.enter_context(serving(name, path)) if name in SERVED else str(path)
            for name in names
        }
        for _ in range(rounds):
            for name in names:
                output = run(name, "take", sources[name], str(seconds))
                figures = json.loads(output.splitlines()[-1])
                first[name].append(figures["first"])
                after[name].append(figures["after"])
    return first, after


@contextlib.contextmanager
def serving(name: str, path: Path) -> Iterator[str]:
    """Lend the address of a contender's server."""
    with subprocess.Popen(command(name, "serve", str(path)), stdout=subprocess.PIPE, text=True) as (
        server
    ):
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def run(name: str, *words: str) -> str:
    """Run a contender and return what it printed."""
    return subprocess.run(
        command(name, *words), stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def command(name: str, *words: str) -> list[str]:
    """Return the command line of a contender."""
    return [sys.executable, "-m", "benchmarks.peers.run", name, *words]


def print_targets(median: dict[str, float]) -> None:
    """Print what was aimed at, and what came of it."""
    for prefix, target, peer in TARGETS:
        peers = [figure for name, figure in median.items() if name.split(":")[0] == prefix]
        if peers and "tokenfeed" in median:
            ratio = median["tokenfeed"] / max(peers)
            verdict = "met" if ratio >= target else "missed"
            print(f"{ratio:5.2f}x {peer}: target {target}x, {verdict}")


if __name__ == "__main__":
    main()
