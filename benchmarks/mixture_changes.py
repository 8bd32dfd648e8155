"""What does a mixture lose or repeat when its weights change, and it resumes with other ranks?

The run is that of benchmarks.mixture_run, the same for all peers: 12,000 rows, weights of 70, 20
and 10 percent that become 30, 30 and 40 after 6,016 rows, and a stop after 9,024 rows, from which
2 ranks go on instead of 4. It is done twice: with sources of 10,000 rows, of which none ends, and
with one of 2,000 rows, whose epoch ends. Each peer does what its documentation or its users advise;
its module in benchmarks/peers/mixtures says what. Each run is a fresh process.

repeated: rows that came more often than once per epoch of their source.
lost: with large sources, rows that the peer's own order has before the last row delivered, and that
did not come. A peer whose order does not outlive a change of weights can lose rows only at the stop
then. With a small source: how often a row is missing in the epochs that each source has completed,
by the number of its rows delivered. This needs no order, and is the same for all.
share error: the largest error of a source's share against the weights in force, in percentage
points: of whole phases, and of windows of 1,000 rows, before and after the change.

Everything is determined by the seed. Cells have the range over all seeds.
Run: python -m benchmarks.mixture_changes [--seeds 1 2] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.delivered import Contender, ContenderFailed, end_session, installed
from benchmarks.mixture_counts import Order, Phase, excess, gaps, share_error, window_error
from benchmarks.mixture_run import AFTER, BEFORE, CHANGED, SOURCES, TOTAL, write_sources
from benchmarks.report import heading

PEERS = (
    Contender("tokenfeed", "tokenfeed"),
    Contender("dataloader", "WeightedRandomSampler"),
    Contender("grain_peer", "grain", ("grain", "grain")),
    Contender("mosaicml", "MosaicML streaming", ("streaming", "mosaicml-streaming")),
)
SIZES = {
    "no epoch ends": (10_000, 10_000, 10_000),
    "an epoch of math ends": (10_000, 10_000, 2_000),
}
"""Rows of the sources."""
PHASES = (Phase(0, CHANGED, BEFORE), Phase(CHANGED, TOTAL, AFTER))
COLUMNS = ("repeated", "lost", "before", "after", "window before", "window after")
RUN_SECONDS_MAX = 120.0

Figures = Sequence[float]
"""Those of COLUMNS."""


def main() -> None:
    """Print a table for each choice of sources."""
    # By default SIGTERM ends Python without running `finally`, so a run would outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    arguments = parser.parse_args()
    peers = installed([peer for peer in PEERS if peer.name in arguments.only])
    settings = {
        peer: import_module(f"benchmarks.peers.mixtures.{peer.name}").SETTINGS for peer in peers
    }
    for title, sizes in SIZES.items():
        named = ", ".join(f"{name} {size}" for name, size in zip(SOURCES, sizes, strict=True))
        print(heading(f"{title} ({named} rows), seeds {arguments.seeds}"))
        print(f"{'':50} {' '.join(f'{column:>14}' for column in COLUMNS)}", flush=True)
        for peer in peers:
            for setting in settings[peer]:
                print(line(peer, setting, sizes, arguments.seeds), flush=True)
        print()


def line(peer: Contender, setting: str, sizes: Sequence[int], seeds: Sequence[int]) -> str:
    """Return a row of the table: the range of each figure over all seeds, or why there is none."""
    name = f"{peer.title}: {setting}"
    try:
        columns = zip(*(figures(peer, setting, sizes, seed) for seed in seeds), strict=True)
    except ContenderFailed as error:
        return f"{name:50} {error}"
    return f"{name:50} {' '.join(f'{spread(column):>14}' for column in columns)}"


def spread(values: Figures) -> str:
    """Return the range of some figures: counts, or percentage points."""
    least, largest = (
        str(one) if isinstance(one, int) else f"{one:.1f}" for one in (min(values), max(values))
    )
    return least if least == largest else f"{least} to {largest}"


def figures(peer: Contender, setting: str, sizes: Sequence[int], seed: int) -> Figures:
    """Return what a fresh process delivers, counted.  Raises: ContenderFailed."""
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder), sizes)
        command = [sys.executable, "-m", f"benchmarks.peers.mixtures.{peer.name}"]
        command += ["--folder", folder, "--seed", str(seed), "--setting", setting]
        delivered = json.loads(output_of(command))
    rows = np.array(delivered["rows"])
    if len(rows) != TOTAL:
        raise ContenderFailed(f"delivered {len(rows)} of {TOTAL} rows")
    often, missing = excess(rows, dict(enumerate(sizes)))
    orders = [Order(**order) for order in delivered["orders"]]
    lost = gaps(rows, orders) if min(sizes) == max(sizes) else missing
    errors = [measure(rows, phase) for measure in (share_error, window_error) for phase in PHASES]
    return [often, lost, *errors]


def output_of(command: Sequence[str]) -> str:
    """Return the last line that a command prints.  Raises: ContenderFailed, with its error."""
    # In its own session, so that it can be killed together with its servers and workers.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise ContenderFailed("had not ended in time") from None
    finally:
        end_session(process.pid)
    if process.returncode != 0:
        raise ContenderFailed(f"failed: {log.strip().splitlines()[-1]}")
    return output.splitlines()[-1]


if __name__ == "__main__":
    main()
