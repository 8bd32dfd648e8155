"""How long until a stream runs at full speed, and what does the warm-up cost meanwhile?

A cold corpus, and one that is in the page cache but not in the server's page table; with the
warm-up and without it (page faults during the gather). Then a stream from a warm dataset while the
server preloads another one. Run: python -m benchmarks.warm_up [--gib 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import (
    drop,
    folder_on_disk,
    frame_sizes,
    read_in,
    served,
    stream,
    write_corpus,
)

SLICE_SECONDS = 0.1
FULL_SHARE = 0.9
CAP_SECONDS = 12.0
OFF = ("--warm-up-bytes", "0")


def main() -> None:
    """Print seconds until full speed, and the rate of a stream during a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", int(arguments.gib * 2**30))
        small = write_corpus(folder / "small.bin", 1 << 28, seed=1)
        seconds: dict[str, list[float]] = {}
        first: dict[str, list[float]] = {}
        during: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            full = None
            for state, prepare in (("in the page cache", read_in), ("cold", drop)):
                for name, options in (("warm-up", ()), ("faulted in", OFF)):
                    prepare([corpus])
                    rates = track(corpus, options)
                    # Full speed is the end of the first run: in memory, and mapped.
                    full = full or float(np.median(rates[-20:]))
                    label = f"{state}, {name}"
                    seconds.setdefault(label, []).append(until_full(rates, full))
                    first.setdefault(label, []).append(float(np.mean(rates[:10])))
            for name, options in (("no warm-up", OFF), ("warm-up of a cold dataset", ())):
                drop([corpus])
                during.setdefault(name, []).append(rate_during(small, corpus, options))
    print_table(f"until {FULL_SHARE:.0%} of full speed, {arguments.gib} GiB", "s", seconds)
    print(f"({CAP_SECONDS:.0f} s: not reached within that time)")
    print_table("a stream of 32 x 2048 in its first second", "Mtok/s", first)
    print_table("a stream from a warm dataset while another is preloaded", "Mtok/s", during)


def track(corpus: Path, options: Sequence[str]) -> list[float]:
    """Return the rate of a stream from a fresh server in each time slice, Mtok/s."""
    with served("--data", f"corpus={corpus}", *options) as server:
        return slices(server.address, "corpus", CAP_SECONDS)


def slices(address: str, dataset: str, seconds: float) -> list[float]:
    """Return the rate of a stream in each slice of SLICE_SECONDS, Mtok/s."""
    tokens = np.zeros(int(seconds / SLICE_SECONDS))
    began = time.monotonic()
    for size in frame_sizes(address, stream(dataset)):
        index = int((time.monotonic() - began) / SLICE_SECONDS)
        if index >= tokens.size:
            break
        tokens[index] += size / 2
    return (tokens / SLICE_SECONDS / 1e6).tolist()


def until_full(rates: Sequence[float], full: float) -> float:
    """Return the seconds until half a second runs at full speed throughout, or the cap."""
    half = int(0.5 / SLICE_SECONDS)
    for index in range(len(rates) - half):
        if np.mean(rates[index : index + half]) >= FULL_SHARE * full:
            return index * SLICE_SECONDS
    return CAP_SECONDS


def rate_during(small: Path, corpus: Path, options: Sequence[str]) -> float:
    """Return the rate of a stream from the small dataset while the other one is preloaded, for at
    most three seconds.
    """
    with served("--data", f"small={small}", "--data", f"corpus={corpus}", *options) as server:
        rates = slices(server.address, "small", 3.0)
        ended = re.search(r"warm-up ended dataset=corpus .*seconds=([\d.]+)", server.log)
        count = int(float(ended[1]) / SLICE_SECONDS) if ended else len(rates)
        return float(np.mean(rates[: max(5, count)]))


if __name__ == "__main__":
    main()
