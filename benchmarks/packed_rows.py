"""What do rows of documents cost, against shuffled windows of the same corpus?

Batches of 32 x 2048 as int64, one client and one server on this machine, which both share. Corpora
of documents of log-normal lengths, as of web pages and of short exchanges (packing_lengths.py).
Rows of documents are made before the first run. Each run is a fresh client of a fresh server; the
settings alternate. Ratios refer to shuffled.

warm: corpora in memory, orders shuffled, packed and padded.
cold: larger corpora on a disk, whose token files are dropped from the page cache when the server
has started (mincore confirms it), and which it does not warm up. A packed row reads more pages of 4
KiB than a window does, as most of its pieces begin and end within a page. So the rate is compared
with the pages that rows read by their plan: if only pages counted, packed would deliver pages of a
shuffled row / pages of a packed row of the rate of shuffled.
Run: python -m benchmarks.packed_rows [--rounds 5] [--seconds 2] [--only warm cold] [--gib 8]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.contender import fresh_run, measure, serving
from benchmarks.delivered import by_round, verdict
from benchmarks.packing_lengths import LOG_NORMAL, drawn
from benchmarks.report import print_columns, print_load, print_table
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, ROW_TOKENS, write_corpus
from benchmarks.serving import drop, folder_on_disk
from client import RemoteBatches
from tokenfeed.sampling.document_rows import FilePieces, RowsKey
from tokenfeed.server.storage.local.syscalls import PAGE_BYTES

TOKENS = 1 << 28
WINDOWS, PACKED, PADDED = "shuffled", "packed", "padded"
TARGET = 0.8
"""Of web-like documents: warm, of the rate of shuffled; cold, of what its pages allow."""
AIMED = ("web", PACKED)
NO_WARM_UP = ("--warm-up-bytes", "0")
_TOKEN_BYTES = 2

Numbers = npt.NDArray[np.int64]
Rates = dict[tuple[str, str], list[float]]


def main() -> None:
    """Print the rates and the targets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="after the first")
    parser.add_argument("--only", nargs="+", choices=("warm", "cold"), default=("warm", "cold"))
    parser.add_argument("--order", default=WINDOWS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in each warm corpus")
    parser.add_argument("--gib", type=float, default=8.0, help="of each cold corpus")
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "SETTING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        folder, setting = arguments.run
        kind, order, cache = setting.split()
        print(json.dumps(run(Path(folder), kind, order, cache, arguments.seconds)))
        return
    print_load("before")
    if "warm" in arguments.only:
        with tempfile.TemporaryDirectory() as name:
            report_warm(Path(name), arguments)
    if "cold" in arguments.only:
        with folder_on_disk() as folder:
            report_cold(folder, arguments)
    print_load("after")


def report_warm(folder: Path, arguments: argparse.Namespace) -> None:
    """Compare all orders in memory."""
    for kind in LOG_NORMAL:
        write_documents(folder, kind, arguments.tokens)
        for order in (PACKED, PADDED):
            run(folder, kind, order, "warm", 0.0)
    rates = rates_of(folder, "warm", (WINDOWS, PACKED, PADDED), arguments)
    for setting in rates:
        if setting[1] != WINDOWS:
            print(compared(rates, setting, TARGET if setting == AIMED else None))


def report_cold(folder: Path, arguments: argparse.Namespace) -> None:
    """Compare shuffled and packed that wait for the disk, with the pages that they read."""
    tokens = int(arguments.gib * 2**30) // _TOKEN_BYTES
    pages = {}
    for kind in LOG_NORMAL:
        ends = write_documents(folder, kind, tokens)
        run(folder, kind, PACKED, "warm", 0.0)
        windows = np.arange((tokens - 1) // CONTEXT_LENGTH) * CONTEXT_LENGTH
        pages[kind] = (
            float(pages_of(windows, np.full_like(windows, ROW_TOKENS)).mean()),
            packed_pages(ends),
        )
    rates = rates_of(folder, "cold", (WINDOWS, PACKED), arguments)
    print_columns("pages of 4 KiB that a row reads", (WINDOWS, PACKED), pages)
    for kind, (of_windows, of_packed) in pages.items():
        allowed = of_windows / of_packed
        megabytes = median(rates[kind, PACKED]) * 1e6 / CONTEXT_LENGTH * of_packed * PAGE_BYTES
        is_aimed = (kind, PACKED) == AIMED
        print(
            f"{compared(rates, (kind, PACKED), TARGET * allowed if is_aimed else None)}; by its "
            f"pages {allowed:.2f}; packed reads {megabytes / 1e6:.0f} MB/s of pages"
        )


def rates_of(
    folder: Path, cache: str, orders: tuple[str, ...], arguments: argparse.Namespace
) -> Rates:
    """Measure and print the million tokens per second of all kinds of documents, alternating."""
    rates: Rates = {}
    for _ in range(arguments.rounds):
        for kind in LOG_NORMAL:
            for order in orders:
                setting = f"{kind} {order} {cache}"
                found = fresh_run("packed_rows", str(folder), setting, arguments)
                rates.setdefault((kind, order), []).append(found["after"] / 1e6)
    named = {" ".join(setting): found for setting, found in rates.items()}
    print_table(f"{cache}: delivered, padding included", "Mtok/s", named)
    return rates


def compared(rates: Rates, setting: tuple[str, str], target: float | None) -> str:
    """Return the ratio to the shuffled windows of the same corpus, and the target."""
    base = rates[setting[0], WINDOWS]
    ratio = median(rates[setting]) / median(base)
    aim = "" if target is None else f"{verdict(ratio >= target, f'{target:.2f}')}; "
    each = by_round([ours / theirs for ours, theirs in zip(rates[setting], base, strict=True)])
    return f"{setting[0]}, {setting[1]} / {WINDOWS}: {ratio:.2f} ({aim}{each})"


def run(folder: Path, kind: str, order: str, cache: str, seconds: float) -> dict[str, float]:
    """Return the figures of an order of a corpus.  cache: "warm" or "cold"."""
    path = folder / f"{kind}.ds"
    command = ["server", "--data", str(path), "--host", "127.0.0.1", "--port", "0"]
    command += NO_WARM_UP if cache == "cold" else ()
    with serving(*command, "--log-level", "warning") as address:
        if cache == "cold":
            drop([path])  # also the blocks that were read for the fingerprint
        with RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH, order=order) as feed:
            return measure(feed, seconds)[0]


def write_documents(folder: Path, kind: str, tokens: int) -> Numbers:
    """Write a corpus with an index of its documents. Return where these end: int64[documents]."""
    write_corpus(folder / f"{kind}.ds", tokens)
    median_tokens, _ = LOG_NORMAL[kind]
    ends = np.cumsum(drawn(kind, int(2 * tokens / median_tokens)))
    ends = np.append(ends[ends < tokens], tokens)
    ends.astype("<u8").tofile(folder / f"{kind}.ds.index")
    return ends


def packed_pages(ends: Numbers) -> float:
    """Return how many pages a packed row reads, the mean of all rows."""
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    key = RowsKey("packed-1", CONTEXT_LENGTH, "cut")
    pages = rows = 0
    for part in FilePieces.of(starts, int(ends[-1]), key).rows():
        pages += int(pages_of(part.token_offset, part.token_count).sum())
        rows += part.first_piece.size - 1
    return pages / rows


def pages_of(first_token: Numbers, token_count: Numbers) -> Numbers:
    """Return how many pages of the file, which has no header, these tokens lie in: int64[n]."""
    first_byte = first_token * _TOKEN_BYTES
    last_byte = first_byte + token_count * _TOKEN_BYTES - 1
    return last_byte // PAGE_BYTES - first_byte // PAGE_BYTES + 1


if __name__ == "__main__":
    main()
