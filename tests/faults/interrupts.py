"""Ctrl-C anywhere: whatever it interrupts, nothing hangs, and the next loop continues."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from client.stream.row_stream import PREFETCH_BYTES

from .lab import ROOT, Replica, Report, replicas, write_corpus

WAYS = (
    "loop", "with_block", "copy_into", "epoch", "state_dict", "let_go", "stopped", "unresolved",
)  # fmt: skip
AT_ONCE = 4
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
        with ThreadPoolExecutor(AT_ONCE) as threads:
            runs = list(_runs(processes, seed, serving, stopped, corpus))
            for (way, address, *_), outcome in zip(
                runs, threads.map(lambda run: _run(*run), runs), strict=True
            ):
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
) -> Iterator[tuple[str, str, int, int]]:
    """Yield the work, the target, the seed and the prefetched bytes of each process."""
    chance = random.Random(seed)
    others = {"stopped": stopped.address, "unresolved": "dns:///nobody.invalid:1"}
    for way in WAYS:
        count = processes if way == "loop" else -(-processes // OTHERS_SHARE)
        for _ in range(count):
            seed = chance.randrange(1 << 30)
            yield way, others.get(way, serving.address), seed, PREFETCH_BYTES
            if way not in others:
                # Without a server: by a thread, or by the interrupted thread itself.
                yield way, f"file:{corpus}", seed, chance.choice((0, PREFETCH_BYTES))


def _run(way: str, address: str, seed: int, prefetch_bytes: int) -> dict[str, Any]:
    """Run one process.  Returns: its result; {"hung": its last output} if it failed or hung."""
    command = [sys.executable, "-m", "tests.faults.interrupted", way, address]
    done = subprocess.run(
        [*command, str(seed), str(INTERRUPTS), str(prefetch_bytes)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return {"hung": f"{way}, seed {seed}, exit code {done.returncode}: {done.stderr[-4000:]}"}
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


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
