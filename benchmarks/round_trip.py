"""How fast do batches arrive over a network with a round trip of 10 ms?

One client of 32 x 2048 as int64 (x, y) on the CPU, and a server on the same machine with a warm
corpus. Between them, a proxy delays each direction by half of the round trip
(benchmarks.delay_line). It shares the processors with both, so the rate is lower than its delay
alone would make it. With --round-trip-ms 0 there is no proxy. Each run is a fresh server and a
fresh client. Several checkouts alternate; ratios refer to the first one.
Run: python -m benchmarks.round_trip [--checkout DIR ...] [--round-trip-ms 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from benchmarks.checkouts import add_checkouts, titled
from benchmarks.contender import serving
from benchmarks.report import print_load, print_table
from benchmarks.serving import folder_on_disk, served, write_corpus

CORPUS_BYTES = 1 << 29
SETTLE_SECONDS = 1.0
RUN_SECONDS_MAX = 60.0  # in addition to the measurement


def main() -> None:
    """Print a row for each checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_checkouts(parser)
    parser.add_argument("--round-trip-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="after the first")
    arguments = parser.parse_args()
    print_load("before")
    checkouts = titled(arguments.checkout)
    rounds: dict[str, list[float]] = {one.title: [] for one in checkouts}
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", CORPUS_BYTES)
        for _ in range(arguments.rounds):
            for one in checkouts:
                rate = measured(one.folder, corpus, arguments.round_trip_ms, arguments.seconds)
                rounds[one.title].append(rate / 1e6)
    delay = (
        f"a round trip of {arguments.round_trip_ms:g} ms" if arguments.round_trip_ms else "direct"
    )
    print_table(f"32 x 2048 as int64 (x, y), {delay}", "Mtok/s", rounds)
    print_load("after")


def measured(checkout: Path, corpus: Path, round_trip_ms: float, seconds: float) -> float:
    """Return the tokens per second of a fresh server and a fresh client of a checkout."""
    with served("--data", corpus, checkout=checkout) as server:
        server.wait_for_log("warm-up ended")
        with delayed(server.address, round_trip_ms) as address:
            return client_rate(checkout, address, seconds)


def delayed(address: str, round_trip_ms: float) -> AbstractContextManager[str]:
    """Run a proxy for the duration of a with block, which has its address; none for 0 ms."""
    if not round_trip_ms:
        return nullcontext(address)
    delay = ("--delay-ms", str(round_trip_ms / 2))
    return serving("benchmarks.delay_line", "--target", address, *delay)


class Delivered(NamedTuple):
    """What a client got.

    rate: tokens per second.  tokens: in all.  client_seconds: processor time of the client for each
    token.
    """

    rate: float
    tokens: int
    client_seconds: float


def client_rate(checkout: Path, address: str, seconds: float) -> float:
    """Return the tokens per second that the client of a checkout gets."""
    return delivered(checkout, address, seconds).rate


def delivered(checkout: Path, address: str, seconds: float, *redactions: str) -> Delivered:
    """Run the client of a checkout.  redactions: the hashes of lists whose tokens it leaves out."""
    program = str(Path(__file__).with_name("remote_rate.py"))
    answer = subprocess.run(
        [sys.executable, program, address, str(SETTLE_SECONDS), str(seconds), *redactions],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_SECONDS_MAX + seconds,
        check=True,
    )
    rate, tokens, client_seconds = answer.stdout.split()
    return Delivered(float(rate), int(tokens), float(client_seconds))


if __name__ == "__main__":
    main()
