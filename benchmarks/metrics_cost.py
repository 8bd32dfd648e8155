"""What do counting and metrics cost? At most 1 % of what one client gets, is the target.

One client of 32 x 2048 as int64 (x, y) on the CPU, and a server on the same machine with a warm
corpus. The server of this checkout runs without metrics, and with --metrics-port and a scrape every
second, as Prometheus does it. Counting is always on, so other checkouts show what that costs: name
one from before. Each run is a fresh server and a fresh client; all alternate, in an order that is
reversed each round. Ratios refer to the first row.
Run: python -m benchmarks.metrics_cost [--checkout DIR ...] [--rounds 20]
"""

from __future__ import annotations

import argparse
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.checkouts import Checkout, add_checkouts, titled
from benchmarks.processor_time import tree_seconds
from benchmarks.report import print_load, print_table
from benchmarks.round_trip import SETTLE_SECONDS, client_rate
from benchmarks.rows import CONTEXT_LENGTH
from benchmarks.serving import ROOT, Server, folder_on_disk, served, write_corpus

CORPUS_BYTES = 1 << 29
SCRAPE_SECONDS = 1.0
TARGET = 0.99
"""Of the rate without metrics, and without counting: at least this."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the tables.  with_metrics: whether the server has metrics that are scraped."""

    title: str
    checkout: Path
    with_metrics: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """rate: tokens per second of the client.  ms_per_mib: processor time of the server for a MiB of
    tokens as they travel.
    """

    rate: float
    ms_per_mib: float


def main() -> None:
    """Print a table for each figure, and whether the target is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_checkouts(parser)
    parser.set_defaults(checkout=[])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="after the first")
    arguments = parser.parse_args()
    print_load("before")
    chosen = variants(titled(arguments.checkout))
    rounds: dict[str, list[Measured]] = {one.title: [] for one in chosen}
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", CORPUS_BYTES)
        for number in range(arguments.rounds):
            for one in chosen if number % 2 == 0 else reversed(chosen):
                rounds[one.title].append(measured(one, corpus, arguments.seconds))
    rates = {title: [each.rate / 1e6 for each in found] for title, found in rounds.items()}
    print_table("32 x 2048 as int64 (x, y)", "Mtok/s", rates)
    print()
    times = {title: [each.ms_per_mib * 1e3 for each in found] for title, found in rounds.items()}
    print_table("processor time of the server for a MiB", "us", times)
    print()
    print_targets(rates)
    print_load("after")


def variants(others: list[Checkout]) -> list[Variant]:
    """Return the rows: this checkout without metrics and with them, and other checkouts."""
    return [
        *(Variant(one.title, one.folder, with_metrics=False) for one in others),
        Variant("without metrics", ROOT, with_metrics=False),
        Variant("with metrics, a scrape a second", ROOT, with_metrics=True),
    ]


def measured(one: Variant, corpus: Path, seconds: float) -> Measured:
    """Return the figures of a fresh server and a fresh client of the same checkout."""
    options = ("--metrics-port", "0") if one.with_metrics else ()
    with served("--data", corpus, *options, checkout=one.checkout) as server:
        server.wait_for_log("warm-up ended")
        before = tree_seconds(server.pid)
        with scraped(server) if one.with_metrics else nullcontext():
            rate = client_rate(one.checkout, server.address, seconds)
        used = tree_seconds(server.pid) - before
    # The client reads at about this rate from the beginning, a little before it counts.
    sent_bytes = rate * (SETTLE_SECONDS + seconds) * 2 * (CONTEXT_LENGTH + 1) / CONTEXT_LENGTH
    return Measured(rate, used * 1e3 / (sent_bytes / 2**20))


@contextmanager
def scraped(server: Server) -> Iterator[None]:
    """Read the metrics of a server every second, for the duration of a with block.  Raises: what a
    read of them raised, at its end: without scrapes, the rate is not that of its row.
    """
    found = re.search(r"metrics address=(\S+)", server.log)
    assert found is not None
    url = found[1]
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer.read()

    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape)
        try:
            yield
        finally:
            ended.set()
        scraping.result()


def print_targets(rates: dict[str, list[float]]) -> None:
    """Print the median of the rounds' ratios to each row above, and whether it meets the target.

    Pairs of one round ran next to each other: the drift of a machine hardly moves their ratio.
    """
    titles = list(rates)
    for number, title in enumerate(titles):
        for base in titles[:number]:
            ratios = [own / other for own, other in zip(rates[title], rates[base], strict=True)]
            verdict = "met" if median(ratios) >= TARGET else "MISSED"
            spread = f"by round {min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{title} / {base}: {median(ratios):.3f} (target {TARGET}: {verdict}; {spread})")


if __name__ == "__main__":
    main()
