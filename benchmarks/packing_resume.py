"""What do loaders that pack documents skip, repeat and crop when they stop and resume?

The run is that of benchmarks.packing_resume_run, the same for all peers: one epoch over 20,480
documents of web-like lengths, in rows of 2,048, read from one parquet file (tokenfeed: its tokens,
written in Megatron's format first). It is done without a stop; stopped midway and resumed with one
rank; and resumed with two. Each peer does what its module in benchmarks/peers/packing_resume says.
Each run is a fresh process. Nothing is random; cells have the range over several stops.

skipped: documents of which no target came.  repeated: documents of which a target came twice.
cropped: of the other documents, tokens behind the first that were never a target, in percent of
all.  lost: the same with those of the documents skipped. A peer that raises where it loads the
state has no figures.
Run: python -m benchmarks.packing_resume [--stops 400 500] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.delivered import Contender, ContenderFailed, installed, titled
from benchmarks.mixture_changes import output_of, spread
from benchmarks.packing_resume_run import Figures, first_tokens, write_corpus
from benchmarks.report import heading

PEERS = (
    Contender("tokenfeed", "tokenfeed"),
    Contender("nanochat", "nanochat's rule", ("pyarrow", "pyarrow")),
    Contender("huggingface", "datasets and TRL", ("trl", "trl")),
    Contender("torchtitan_peer", "torchtitan", ("torchtitan", "torchtitan")),
)
RUNS = {"not stopped": 0, "1 rank, then 1": 1, "1 rank, then 2": 2}
"""Ranks that resume."""
COLUMNS = ("skipped", "repeated", "cropped %", "lost %", "resumed in s")


def main() -> None:
    """Print a table for each run."""
    # By default SIGTERM ends Python without running `finally`, so a run would outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stops", type=int, nargs="+", default=[400, 500], help="in batches")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    arguments = parser.parse_args()
    # Local files need no network; its absence would only be waited for.
    os.environ["HF_HUB_OFFLINE"] = "1"
    peers = installed([peer for peer in PEERS if peer.name in arguments.only])
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        for title, ranks in RUNS.items():
            stops = arguments.stops if ranks else [0]
            after = f", stopped after {stops} batches" if ranks else ""
            print(heading(f"{title}{after}; {first_tokens()[-1]:,} tokens"))
            print(f"{'':32} {' '.join(f'{column:>16}' for column in COLUMNS)}", flush=True)
            for peer in peers:
                module = import_module(f"benchmarks.peers.packing_resume.{peer.name}")
                for setting in module.SETTINGS:
                    name = titled(peer.title, setting)
                    cells = line(Path(folder), peer, setting, ranks, stops)
                    print(f"{name:32} {cells}", flush=True)
            print()


def line(folder: Path, peer: Contender, setting: str, ranks: int, stops: Sequence[int]) -> str:
    """Return the cells of one peer: the range of each figure over all stops; or why none."""
    try:
        runs = [run(folder, peer, setting, ranks, stop) for stop in stops]
    except ContenderFailed as error:
        return str(error)
    percent = 100 / int(first_tokens()[-1])
    columns = (
        spread([one.skipped for one in runs]),
        spread([one.repeated for one in runs]),
        spread_of([percent * one.cropped for one in runs], 3),
        spread_of([percent * one.lost for one in runs], 3),
        spread_of([one.resume_seconds for one in runs], 2) if ranks else "",
    )
    return " ".join(f"{column:>16}" for column in columns)


def spread_of(values: Sequence[float], digits: int) -> str:
    """Return the range of some figures."""
    least, largest = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return least if least == largest else f"{least} to {largest}"


def run(folder: Path, peer: Contender, setting: str, ranks: int, stop: int) -> Figures:
    """Return what a fresh process prints.  Raises: ContenderFailed, also if a state is refused."""
    command = [sys.executable, "-m", f"benchmarks.peers.packing_resume.{peer.name}"]
    command += ["--folder", str(folder), "--stop", str(stop), "--ranks", str(ranks)]
    found = json.loads(output_of([*command, "--setting", setting]))
    if "refused" in found:
        raise ContenderFailed(f"refused: {found['refused']}")
    return Figures(**found)


if __name__ == "__main__":
    main()
