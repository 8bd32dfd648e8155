"""How fast are random windows of a cold corpus? Against np.memmap, pread in 32 threads, and fio.

A stream of 32 x 2048 from a fresh server without the warm-up, which maps the file or reads it by
pread. Every contender starts with the file dropped from the page cache (mincore confirms it) and
runs for the same time. A window of 2,049 uint16 tokens always spans two pages, so it is a random
read of 8 KiB, and windows per second compare with fio's reads per second. Also: the cost of
read-ahead for a warm corpus, with --look-ahead the best distance, and with --pread what helps a
server that reads by pread. Decides docs/decisions/0006-warm-up.md and 0014-stores.md.
Run: python -m benchmarks.cold_read [--gib 12] [--warm] [--look-ahead 2,4,8,16] [--pread]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import (
    drop,
    folder_on_disk,
    million_tokens_per_second,
    served,
    stream,
    write_corpus,
)

ROW_TOKENS = 2049
ROW_BYTES = 2 * ROW_TOKENS
SECONDS = 2.0
THREADS = 32
NO_WARM_UP = ("--warm-up-bytes", "0")
NO_READ_AHEAD = (
    "from tokenfeed.server.storage.local import readahead\n"
    "readahead.ReadAhead.advise = lambda *_: None"
)
LOOK_AHEAD = "from tokenfeed.server.rows import reader\nreader.READ_AHEAD_BYTES = {mib} << 20"

BY_PREAD = ("--read", "pread")
_PREAD = "from tokenfeed.server.storage.local import pread_bytes\npread_bytes."
NO_ADVICE = f"{_PREAD}PreadBytes.read_ahead = lambda *_: None"
NO_NOWAIT = f"{_PREAD}_NO_WAIT = 0"
ONE_READER = f"{_PREAD}_READERS = 1"

MEMMAP, PREAD, FIO = "np.memmap loop", "pread, 32 threads", "fio randread 8 KiB, depth 64"
WARM_ROUNDS = 21

Contender = Callable[[Path, int], float]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--look-ahead", help="distances in MiB to compare, separated by commas")
    parser.add_argument("--pread", action="store_true", help="only compare ways to read by pread")
    parser.add_argument("--warm", action="store_true", help="only the cost for a warm corpus")
    arguments = parser.parse_args()
    with folder_on_disk() as folder:
        if not arguments.warm:
            corpus = write_corpus(folder / "corpus.bin", int(arguments.gib * 2**30))
            if arguments.look_ahead:
                ways = {f"{mib} MiB": looking(int(mib)) for mib in arguments.look_ahead.split(",")}
                cold = compare(corpus, ways, arguments.rounds)
                print_table("cold, ours by look-ahead", "Mtok/s", cold)
                return
            if arguments.pread:
                cold = compare(corpus, by_pread(), arguments.rounds)
                print_table("cold windows of 2,049 tokens, by pread", "thousand/s", cold)
                return
            report_cold(corpus, arguments.rounds)
        warm = warm_rates(write_corpus(folder / "small.bin", 1 << 28))
    print_table("warm, one stream of 32 x 2048", "Mtok/s", warm)
    off, on = (np.array(found) for found in warm.values())
    print(f"on / off, median of the rounds: {np.median(on / off):.3f} (goal 0.97)")


def report_cold(corpus: Path, rounds: int) -> None:
    """Compare the ways to read cold windows, and print our ratio to each."""
    ways: dict[str, Contender] = {MEMMAP: memmap_loop, PREAD: preads, "ours": ours}
    ways["ours, --read pread"] = lambda corpus, seed: ours(corpus, seed, options=BY_PREAD)
    if shutil.which("fio"):
        ways[FIO] = fio
    cold = compare(corpus, ways, rounds)
    print_table("cold windows of 2,049 tokens", "thousand/s", cold)
    mine = float(np.median(cold["ours"]))
    for name, goal in ((MEMMAP, 40), (PREAD, 1.5), (FIO, 0.6)):
        if name in cold:
            print(f"ours / {name}: {mine / float(np.median(cold[name])):.2f} (goal {goal})")
    print(f"ours: {mine * ROW_TOKENS / 1e3:.0f} Mtok/s, {mine * 8.192:.0f} MB/s of pages read")


def compare(corpus: Path, ways: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Return the rounds of each way, measured alternately."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            drop([corpus])
            found[name].append(way(corpus, number))
    return found


def by_pread() -> dict[str, Contender]:
    """Return a server that reads by pread, variants without one or both of its two ways to read in
    parallel, and a server that maps.
    """

    def lacking(altered: str) -> Contender:
        return lambda corpus, seed: ours(corpus, seed, altered, BY_PREAD)

    return {
        "map": ours,
        "advice, and many threads": lacking(""),
        "advice, one thread": lacking(ONE_READER),
        "many threads": lacking(NO_ADVICE),
        "neither": lacking(f"{NO_ADVICE}\n{ONE_READER}"),
        "many threads, no RWF_NOWAIT": lacking(f"{NO_ADVICE}\n{NO_NOWAIT}"),
        "neither, no RWF_NOWAIT": lacking(f"{NO_ADVICE}\n{ONE_READER}\n{NO_NOWAIT}"),
    }


def ours(corpus: Path, seed: int, altered: str = "", options: Sequence[str] = ()) -> float:
    """Return the thousand windows per second of a stream from a fresh server."""
    with served("--data", f"train={corpus}", *NO_WARM_UP, *options, altered=altered) as server:
        drop([corpus])  # the blocks that the fingerprint has read
        rate = million_tokens_per_second(server.address, stream(seed=seed), SECONDS)
    return rate * 1e3 / ROW_TOKENS


def looking(mib: int) -> Contender:
    """Return the million tokens per second of ours with another look-ahead."""
    altered = LOOK_AHEAD.format(mib=mib)
    return lambda corpus, seed: ours(corpus, seed, altered) * ROW_TOKENS / 1e3


def warm_rates(corpus: Path) -> dict[str, list[float]]:
    """Return the rates of streams from two servers, alternately, that have the corpus in memory:
    one reads ahead, the other does not.
    """
    rates: dict[str, list[float]] = {"read-ahead off": [], "read-ahead on": []}
    with (
        served("--data", f"train={corpus}", altered=NO_READ_AHEAD) as off,
        served("--data", f"train={corpus}") as on,
    ):
        for server in (off, on):
            server.wait_for_log("warm-up ended")
        for number in range(WARM_ROUNDS):
            for found, server in zip(rates.values(), (off, on), strict=True):
                found.append(million_tokens_per_second(server.address, stream(seed=number), 1.5))
    return rates


def memmap_loop(corpus: Path, seed: int) -> float:
    """Return the thousand windows per second of the usual loop over np.memmap."""
    tokens = np.memmap(corpus, dtype=np.uint16, mode="r")
    rng = np.random.default_rng(seed)
    count = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        starts = rng.integers(0, tokens.size - ROW_TOKENS, 32).tolist()
        np.stack([tokens[start : start + ROW_TOKENS].astype(np.int64) for start in starts])
        count += len(starts)
    return count / (time.monotonic() - end + SECONDS) / 1e3


def preads(corpus: Path, seed: int) -> float:
    """Return the thousand windows per second of many threads that read one window at a time."""
    descriptor = os.open(corpus, os.O_RDONLY)
    places = corpus.stat().st_size // 2 - ROW_TOKENS
    end = time.monotonic() + SECONDS

    def read(number: int) -> int:
        rng = np.random.default_rng((seed, number))
        count = 0
        while time.monotonic() < end:
            for start in rng.integers(0, places, 16).tolist():
                os.pread(descriptor, ROW_BYTES, 2 * start)
            count += 16
        return count

    with ThreadPoolExecutor(THREADS) as threads:
        total = sum(threads.map(read, range(THREADS)))
    os.close(descriptor)
    return total / (time.monotonic() - end + SECONDS) / 1e3


def fio(corpus: Path, seed: int) -> float:
    """Return the disk's thousand random reads of 8 KiB per second, without the page cache."""
    words = [
        "fio", "--name=cold", f"--filename={corpus}", "--readonly", "--rw=randread", "--bs=8k",
        "--iodepth=64", "--ioengine=libaio", "--direct=1", "--time_based",
        f"--runtime={SECONDS:.0f}", f"--randseed={seed + 1}", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"]) / 1e3


if __name__ == "__main__":
    main()
