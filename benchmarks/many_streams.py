"""Do 200 slow streams get their batches in time, and with how much memory? Threads or asyncio?

200 streams of one server, each on its own connection, each consuming 5 batches per second of
8 x 1,024 tokens. The load comes from 4 other processes. A wait lasts from the time a batch is due
until it arrives; all waits count, including the first. Then the throughput of one client.
Decides docs/decisions/0005-sync-server.md.
Run: python -m benchmarks.many_streams [--servers sync,aio] [--client]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import (
    ROOT,
    Server,
    folder_on_disk,
    million_tokens_per_second,
    served,
    stream,
    write_corpus,
)

SERVERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sync": ("server", ()),
    "aio": ("benchmarks.aio_server", ()),
    "aio-inline": ("benchmarks.aio_server", ("--inline",)),
}
PROCESSES = 4
RATE = 5.0
SETTLE_SECONDS = 3.0
"""Time for the load processes to import their modules."""
Rounds = dict[str, list[float]]


def main() -> None:
    """Print a table for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--servers", default="sync,aio,aio-inline")
    parser.add_argument("--client", action="store_true", help="load by the real client")
    parser.add_argument("--add-to", type=Path, help="file that collects the rounds of several runs")
    arguments = parser.parse_args()
    tables: dict[str, Rounds] = {}
    if arguments.add_to and arguments.add_to.exists():
        tables = json.loads(arguments.add_to.read_text())
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", 1 << 28)
        for _ in range(arguments.rounds):
            for name in arguments.servers.split(","):
                for figure, value in one_round(name, corpus, arguments).items():
                    tables.setdefault(figure, {}).setdefault(name, []).append(value)
    if arguments.add_to:
        arguments.add_to.write_text(json.dumps(tables))
    client = "the real client" if arguments.client else "a bare client without prefetching"
    print(f"{arguments.streams} streams for {arguments.seconds:.0f} s, {client}")
    for figure, rounds in tables.items():
        what, _, unit = figure.partition(", ")
        print_table(what, unit, rounds)


def one_round(name: str, corpus: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return all figures of one server under load, and of one client alone."""
    module, options = SERVERS[name]
    with served("--data", corpus, *options, module=module) as server:
        server.wait_for_log("warm-up ended")
        before = memory_bytes(server.pid)
        waits, after = under_load(server, arguments)
    with served("--data", corpus, *options, module=module) as server:
        alone = million_tokens_per_second(server.address, stream(), 2.0, settle_seconds=0.5)
    every = np.concatenate(waits) * 1e3
    taken = np.array([len(found) for found in waits])
    return {
        "99 % of all waits are shorter than, ms": float(np.percentile(every, 99)),
        "half of all waits are shorter than, ms": float(np.median(every)),
        "longest wait, ms": float(every.max()),
        "slowest stream of the median stream's batches, %": float(
            100 * taken.min() / np.median(taken)
        ),
        "batches taken of those due, %": float(
            100 * taken.sum() / (arguments.streams * int(arguments.seconds * RATE))
        ),
        "server's own memory per stream, KiB": (after - before) / arguments.streams / 1024,
        "one client of 32 x 2048, Mtok/s": alone,
    }


def under_load(server: Server, arguments: argparse.Namespace) -> tuple[list[np.ndarray], int]:
    """Return the waits of every stream in seconds, and the peak memory of the server."""
    start = time.monotonic() + SETTLE_SECONDS
    share = arguments.streams // PROCESSES
    loads = [
        subprocess.Popen(
            [
                sys.executable, "-m", "benchmarks.paced_load", server.address,
                "--first", str(index * share), "--streams", str(share), "--start", str(start),
                "--seconds", str(arguments.seconds), "--rate", str(RATE),
                *(["--client"] if arguments.client else []),
            ],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for index in range(PROCESSES)
    ]  # fmt: skip
    most = 0
    while time.monotonic() < start + arguments.seconds - 0.5:
        most = max(most, memory_bytes(server.pid))
        time.sleep(0.25)
    waits = []
    for load in loads:
        assert load.stdout is not None
        waits += [np.array(found) for found in json.loads(load.stdout.read())]
        load.wait(timeout=60)
    return waits, most


def memory_bytes(pid: int) -> int:
    """Return the memory of a process in bytes, without the mapped corpus, which is page cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    kinds = ("RssAnon:", "RssShmem:")
    return sum(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kinds)
    )


if __name__ == "__main__":
    main()
