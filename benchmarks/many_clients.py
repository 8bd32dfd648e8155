"""How fast is one server with 64 streams at full speed, and how soon do 200 of them start?

Streams of 32 x 2048, each on its own connection, from a warm corpus. The load comes from 4 other
processes of the server's checkout, a bare client that discards what it receives
(benchmarks.full_load). It shares the processors with the server. Tokens are counted as they travel,
uint16. The start is measured with a fresh server: 200 streams connect at the same moment and go on
reading. Several checkouts alternate; ratios refer to the first one.
Run: python -m benchmarks.many_clients [--checkout DIR ...] [--streams 64] [--starting 200]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.checkouts import add_checkouts, titled
from benchmarks.processor_time import tree_seconds
from benchmarks.report import print_load, print_table
from benchmarks.serving import folder_on_disk, served, write_corpus

CORPUS_BYTES = 1 << 29
PROCESSES = 4
START_SECONDS = 0.2
"""From "go" to the start, so that every process is told in time."""
SETTLE_SECONDS = 1.0
STARTING_SECONDS = 3.0
RUN_SECONDS_MAX = 60.0  # in addition to the measurement


@dataclass(frozen=True, slots=True)
class Measured:
    """first_frames: seconds from the start, of each stream.  rate: bytes per second of all streams.
    ms_per_mib: processor time of the server.
    """

    first_frames: list[float]
    rate: float
    ms_per_mib: float


def main() -> None:
    """Print a table for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_checkouts(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="after the first")
    parser.add_argument("--streams", type=int, default=64, help="at full speed")
    parser.add_argument("--starting", type=int, default=200, help="streams that start together")
    arguments = parser.parse_args()
    print_load("before")
    tables: dict[str, dict[str, list[float]]] = {}
    with folder_on_disk() as folder:
        corpus = write_corpus(folder / "corpus.bin", CORPUS_BYTES)
        for _ in range(arguments.rounds):
            for one in titled(arguments.checkout):
                for figure, value in one_round(one.folder, corpus, arguments).items():
                    tables.setdefault(figure, {}).setdefault(one.title, []).append(value)
    for figure, rounds in tables.items():
        what, _, unit = figure.rpartition(", ")
        print_table(what, unit, rounds)
        print()
    print_load("after")


def one_round(checkout: Path, corpus: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return all figures of a checkout."""
    full = measured(checkout, corpus, arguments.streams, SETTLE_SECONDS, arguments.seconds)
    starting = measured(checkout, corpus, arguments.starting, 0.0, STARTING_SECONDS)
    streams, together = f"{arguments.streams} streams", f"{arguments.starting} streams together"
    return {
        f"{streams}, all of them, Mtok/s": full.rate / 2e6,
        f"{streams}, processor time of the server for a MiB, us": full.ms_per_mib * 1e3,
        f"{together}, median first frame after, ms": median(starting.first_frames) * 1e3,
        f"{together}, last first frame after, ms": max(starting.first_frames) * 1e3,
    }


def measured(
    checkout: Path, corpus: Path, streams: int, settle_seconds: float, seconds: float
) -> Measured:
    """Return the figures of a fresh server."""
    with (
        served("--data", corpus, checkout=checkout) as server,
        loads(checkout, server.address, streams, settle_seconds, seconds) as processes,
    ):
        server.wait_for_log("warm-up ended")
        start = time.monotonic() + START_SECONDS
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{start}\n")
            process.stdin.flush()
        sleep_until(start + settle_seconds)
        before = tree_seconds(server.pid)
        sleep_until(start + settle_seconds + seconds)
        used = tree_seconds(server.pid) - before
        answers = [process.communicate(timeout=RUN_SECONDS_MAX)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a load process failed; see its output above")
    found = [stream for answer in answers for stream in json.loads(answer)]
    received = sum(received_bytes for _, received_bytes in found)
    return Measured(
        [first_frame for first_frame, _ in found],
        received / seconds,
        used * 1e3 / (received / 2**20),
    )


@contextmanager
def loads(
    checkout: Path, address: str, streams: int, settle_seconds: float, seconds: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the load processes for the duration of a with block, which begins when all are ready."""
    with ExitStack() as stack:
        processes = []
        count = min(PROCESSES, streams)
        for index in range(count):
            first, end = (streams * number // count for number in (index, index + 1))
            command = ["--first", first, "--streams", end - first]
            command += ["--settle", settle_seconds, "--seconds", seconds]
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.full_load", address, *map(str, command)],
                cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                sys.exit("a load process did not start; see its output above")
        yield processes


def sleep_until(moment: float) -> None:
    """Sleep until this moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


if __name__ == "__main__":
    main()
