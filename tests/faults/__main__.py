"""Injects faults into real servers through real sockets, and checks every batch.

The run fails if a fault missed the server that was delivering, or if a row was lost, repeated or
wrong. Run: python -m tests.faults [--long] [--only NAME ...] [--seed N] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked import COLD

from . import clients, credentials, files, interrupts, network, processes
from .lab import Report

Inject = Callable[[Path, int, int], Report]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A line of the table.  brief, short, long: the number of faults, or seconds: in a test, by
    default, and with --long.  needs_root: to create a network namespace.  is_timed: whether what
    it requires of waits or rates needs a machine without other work.
    """

    name: str
    inject: Inject
    brief: int
    short: int
    long: int
    needs_root: bool = False
    is_timed: bool = False


EXPERIMENTS = (
    Experiment("kill", processes.kill, 2, 5, 100, is_timed=True),
    Experiment("restart", processes.rolling_restart, 1, 2, 10, is_timed=True),
    Experiment("all-down", processes.all_down, 2, 3, 30, is_timed=True),
    Experiment("stop", processes.stopped, 1, 1, 5, is_timed=True),
    Experiment("black-hole", processes.black_hole, 1, 1, 5, is_timed=True),
    Experiment("cut", network.broken, 10, 40, 2000),
    Experiment("slow", network.slowed, 5, 20, 2000),
    Experiment("flip", network.flipped, 12, 50, 2000),
    Experiment("thin-line", network.thin_line, 2, 4, 64, needs_root=True, is_timed=True),
    Experiment("stall", clients.stalled_reader, 3, 6, 300, is_timed=True),
    Experiment("neighbor", clients.neighbors, 1, 2, 15, is_timed=True),
    Experiment("greedy", clients.greedy_client, 1, 2, 15, is_timed=True),
    Experiment("loris", clients.slow_loris, 20, 50, 1000),
    Experiment("connect", clients.connects, 60, 300, 10_000),
    Experiment("vanish", clients.client_kills, 20, 40, 1000),
    Experiment("malformed", clients.malformed, 1000, 10_000, 100_000),
    Experiment("truncate", files.truncated, 3, 10, 100),
    Experiment("one-token", files.one_token, 1, 2, 20),
    Experiment("interrupt", interrupts.anywhere, 1, 4, 200),
    Experiment("credentials", credentials.matrix, 1, 1, 5),
    Experiment("soak", clients.soak, 3, 10, 1800),
)


def main() -> int:
    """Run, and print the table.  Returns: 0 if every requirement was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="as in docs/faults.md; 80 minutes")
    parser.add_argument(
        "--share", type=float, default=1.0, help="inject this share of them (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ[COLD] = ""  # servers as users start them
    reports = []
    print(f"seed {arguments.seed}\n")
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    for experiment in EXPERIMENTS:
        if arguments.only and experiment.name not in arguments.only:
            continue
        amount = experiment.long if arguments.long else experiment.short
        amount = math.ceil(amount * arguments.share)
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = experiment.inject(Path(folder), amount, arguments.seed)
            except Exception:  # noqa: BLE001 - the other faults must still be tried
                report = Report(experiment.name, failures=[traceback.format_exc()])
        reports.append(report)
        print(line(report), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([summary(report) for report in reports], indent=1))
    return any(report.failures for report in reports)


HEADS = (
    "fault", "injected", "hit", "batches", "lost", "repeated", "wrong", "longest gap", "memory",
)  # fmt: skip


def line(report: Report) -> str:
    """Return a report as a row of a Markdown table, with notes and failures below it."""
    cells = (
        report.fault, report.injected, report.hits, f"{report.batches:,}", report.lost,
        report.repeated, report.corrupted,
        f"{report.longest_gap:.2f} s" if report.gaps else "-",
        "-" if report.memory_bytes is None else f"{report.memory_bytes / (1 << 20):+.1f} MiB",
    )  # fmt: skip
    failures = "".join(f"\n    FAILED: {failure}" for failure in report.failures)
    notes = "".join(f"\n    {note}" for note in report.notes)
    return "| " + " | ".join(map(str, cells)) + " |" + notes + failures


def summary(report: Report) -> dict[str, object]:
    """Return a report as plain values."""
    values = {name: getattr(report, name) for name in report.__dataclass_fields__ if name != "gaps"}
    return values | {"longest_gap_seconds": report.longest_gap}


if __name__ == "__main__":
    sys.exit(main())
