"""What do redactions cost? At most 1 % of what one client gets without any, and 5 % with 10,000.

One client of 32 x 2048 as int64 (x, y) on the CPU, and a server on the same machine with a warm
corpus. The client reads it as it is, and without the tokens of a list of 10,000 ranges. Other
checkouts show what it costs a stream without redactions that there are any: name one from before.
Each run is a fresh server and a fresh client; all alternate, in an order that is reversed each
round. Ratios refer to the first row. The second table is the processor time of both sides, which
other work on the machine changes less than the rate.
Run: python -m benchmarks.redactions [--checkout DIR ...] [--rounds 12]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.checkouts import add_checkouts, titled
from benchmarks.processor_time import tree_seconds
from benchmarks.report import print_load, print_table
from benchmarks.round_trip import delivered
from benchmarks.serving import ROOT, folder_on_disk, served, write_corpus

CORPUS_BYTES = 1 << 29
RANGES, RANGE_TOKENS = 10_000, 200
TARGETS = {"no redactions": 0.99, "10,000 redactions": 0.95}
"""Of the rate of the rows above: at least this."""
MIB_TOKENS = 1 << 19


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the table.  redactions: hashes of lists whose tokens are left out."""

    title: str
    checkout: Path
    redactions: tuple[str, ...] = ()


def main() -> None:
    """Print the rates, and whether the targets are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_checkouts(parser)
    parser.set_defaults(checkout=[])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0, help="after the first")
    arguments = parser.parse_args()
    print_load("before")
    rounds: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", CORPUS_BYTES)
        variants = [
            *(Variant(one.title, one.folder) for one in titled(arguments.checkout)),
            Variant("no redactions", ROOT),
            Variant("10,000 redactions", ROOT, (redacted(corpus),)),
        ]
        rounds = {one.title: [] for one in variants}
        costs = {one.title: [] for one in variants}
        for number in range(arguments.rounds):
            for one in variants if number % 2 == 0 else reversed(variants):
                rate, cost = measured(one, corpus, arguments.seconds)
                rounds[one.title].append(rate / 1e6)
                costs[one.title].append(cost * 1e6)
    print_table("32 x 2048 as int64 (x, y)", "Mtok/s", rounds)
    print()
    print_table("processor time of server and client", "us per MiB", costs)
    print()
    for number, title in enumerate(rounds):
        for base in list(rounds)[:number]:
            print_target(title, base, rounds)
    print_load("after")


def redacted(corpus: Path) -> str:
    """Add ranges all over a corpus to its list.  Returns: the hash of the list."""
    step = CORPUS_BYTES // 2 // RANGES
    ranges = (
        f"--range=0:{first}:{first + RANGE_TOKENS}" for first in range(0, step * RANGES, step)
    )
    command = [sys.executable, "-m", "tokenfeed", "redact", str(corpus), *ranges, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: str = json.loads(done.stdout)["list"]
    return found


def measured(one: Variant, corpus: Path, seconds: float) -> tuple[float, float]:
    """Run a fresh server and a fresh client of the same checkout.

    Returns: tokens per second, and seconds of processor time of both sides per MiB of tokens.
    """
    with served("--data", corpus, checkout=one.checkout) as server:
        server.wait_for_log("warm-up ended")
        before = tree_seconds(server.pid)
        found = delivered(one.checkout, server.address, seconds, *one.redactions)
        server_seconds = (tree_seconds(server.pid) - before) / found.tokens
    return found.rate, MIB_TOKENS * (server_seconds + found.client_seconds)


def print_target(title: str, base: str, rates: dict[str, list[float]]) -> None:
    """Print the median of the rounds' ratios to another row, and whether it meets the target."""
    ratios = [own / other for own, other in zip(rates[title], rates[base], strict=True)]
    target = TARGETS.get(title, 1.0)
    verdict = "met" if median(ratios) >= target else "MISSED"
    spread = f"by round {min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{title} / {base}: {median(ratios):.3f} (target {target}: {verdict}; {spread})")


if __name__ == "__main__":
    main()
