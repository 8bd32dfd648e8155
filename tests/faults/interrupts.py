"""Ctrl-C anywhere: whatever it interrupts, nothing hangs, and the next loop continues."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenfeed.client.feed.options import PREFETCH_BYTES

from .lab import ROOT, Replica, Report, replicas, write_corpus

Run = tuple[str, str, int, int, int]
"""The way to use feeds, the address, the seed, the number of interrupts, the prefetched bytes."""
WAYS = (
    "loop", "with_block", "copy_into", "epoch", "state_dict", "let_go", "stopped", "unresolved",
)  # fmt: skip
INTERRUPTS = 150
SHARE_MAX = 0.005
"""Maximum share of interrupts without effect: Python swallows those in a callback of a weak
reference, and has such callbacks itself."""
OTHERS_SHARE = 4
"""The plain loop is tried this many times as often as each of the others."""


def anywhere(folder: Path, processes: int, seed: int) -> Report:
    """Interrupt processes, four at a time, 150 times each, in every use of a feed."""
    report = Report("Ctrl-C anywhere in a client, four at once")
    corpus = write_corpus(folder / "train.bin", 1 << 20)
    swallowed: Counter[str] = Counter()
    with replicas(folder, 2, "--data", corpus, "--max-streams", "4096") as (serving, stopped):
        stopped.process.send_signal(signal.SIGSTOP)
        runs = list(_runs(processes, seed, serving, stopped, corpus))
        for (way, address, *_), outcome in zip(runs, interrupted(runs), strict=True):
            _judge(f"{way} of {address}", outcome, report)
            swallowed.update(outcome.get("swallowed", ()))
        stopped.process.send_signal(signal.SIGCONT)
    missed = report.injected - report.hits
    share = missed / max(1, report.injected)
    places = "; ".join(f"{count} in {place}" for place, count in swallowed.most_common())
    report.require(report.injected > 0, "nothing was injected")
    report.require(share <= SHARE_MAX, f"{share:.2%} had no effect: {places}")
    report.notes += [f"{missed} had no effect ({share:.3%}): {places}"] if missed else []
    return report


def _runs(
    processes: int, seed: int, serving: Replica, stopped: Replica, corpus: Path
) -> Iterator[Run]:
    """Yield the work of each process."""
    chance = random.Random(seed)
    others = {"stopped": stopped.address, "unresolved": "dns:///nobody.invalid:1"}
    for way in WAYS:
        count = processes if way == "loop" else -(-processes // OTHERS_SHARE)
        for _ in range(count):
            seed = chance.randrange(1 << 30)
            yield way, others.get(way, serving.address), seed, INTERRUPTS, PREFETCH_BYTES
            if way not in others:
                # Without a server: by a thread, or by the interrupted thread itself.
                prefetch_bytes = chance.choice((0, PREFETCH_BYTES))
                yield way, f"file:{corpus}", seed, INTERRUPTS, prefetch_bytes


def interrupted(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Do the runs, a few at a time, each in its own process.  Returns: what each printed;
    {"hung": what happened} of one that failed or hung.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.interrupted", json.dumps(runs)],
        cwd=ROOT, capture_output=True, text=True, timeout=60 + 60 * len(runs), check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return [{"hung": f"exit code {done.returncode}: {done.stderr[-4000:]}"} for _ in runs]
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        {"hung": outcome["hung"] + done.stderr[-4000:]} if "hung" in outcome else outcome
        for outcome in outcomes
    ]


def _judge(way: str, outcome: dict[str, Any], report: Report) -> None:
    """Add the result of one process to the report."""
    if "hung" in outcome:
        report.failures.append(outcome["hung"])
        return
    report.injected += INTERRUPTS
    report.hits += outcome["raised"]
    report.batches += outcome["batches"]
    report.gaps += [outcome["slowest_seconds"], outcome["closing_seconds"]]
    report.corrupted += outcome["wrong"]
    report.require(outcome["wrong"] == 0, f"{way}: wrong batches")
    report.require(outcome["goes_on"], f"{way}: the next rows were wrong")
    report.require(not outcome["threads_left"], f"{way}: threads left {outcome['threads_left']}")
