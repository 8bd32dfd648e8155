"""What does the manifest of a long run cost? Seconds, and MiB of the file and of memory.

A run of a mixture of three sources with changes of its weights, a batch ramp and a skip, at last
with 1,024 rows a step: the history of its state, without the steps themselves. One source is a
sparse corpus of 10^12 tokens in 10,000 files, read more than once. Memory is what the command takes
beyond that of `tokenfeed describe`. Run: python -m benchmarks.manifest [--steps 1000000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.report import heading
from benchmarks.serving import ROOT, folder_on_disk, served
from tokenfeed.client.batches.arrays import NumpyBatches
from tokenfeed.client.feed.history import Run, history_of
from tokenfeed.client.feed.mixture.recipe import Mixture
from tokenfeed.client.feed.state import packed_stream, read_state, write_state

T = 2048
ROWS_A_STEP = 1024
RANKS = 64
FILES, FILE_TOKENS = 10_000, 10**8
SMALL = {"code": 3 * 10**9, "math": 2 * 10**8}
STAGES = [
    {"first_sample": 0, "weights": {"web": 0.8, "code": 0.15, "math": 0.05}},
    {"first_sample": 3 * 10**8, "weights": {"web": 0.6, "code": 0.25, "math": 0.15}},
    {"first_sample": 8 * 10**8, "weights": {"web": 0.5, "math": 0.5}},
]
LIMIT_SECONDS, LIMIT_MIB = 60, 10
_MIB = 1 << 20


def main() -> None:
    """Print what a manifest costs, and whether it stays below its limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with folder_on_disk() as folder:
        data = write_sparse(folder)
        with served(*(word for each in data for word in ("--data", each))) as server:
            state = write_run(folder, server.address, arguments.steps)
            output = folder / "manifest.jsonl"
            words = ("manifest", server.address, "--state", state, "--output", output)
            print(heading(f"the manifest of {arguments.steps:,} steps of {ROWS_A_STEP:,} rows"))
            for _ in range(arguments.rounds):
                _, base_mib = measured("describe", server.address)
                seconds, memory_mib = measured(*words)
                report(seconds, memory_mib - base_mib, output)


def write_sparse(folder: Path) -> list[str]:
    """Write the corpora, all of holes.  Returns: the values of --data."""
    web = folder / "web"
    web.mkdir()
    for index in range(FILES):
        with (web / f"{index:06}.bin").open("wb") as file:
            file.truncate(2 * FILE_TOKENS)
    for name, tokens in SMALL.items():
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(2 * tokens)
    return [f"web={web}", *(f"{name}={folder / name}.bin" for name in SMALL)]


def write_run(folder: Path, address: str, steps: int) -> Path:
    """Write the state of a run, and return its path."""
    mixture = Mixture(stages=STAGES, order="shuffled", seed=7)
    with NumpyBatches(address, 1, T, mixture=mixture) as feed:
        state = read_state(feed.state_dict())
    runs: list[Run] = []
    sample = step = 0
    for share, batch_size, skipped in ((0.01, 4, 0), (0.89, 16, 0), (0.1, 16, 12_345_678)):
        count = int(share * steps)
        sample += skipped
        runs.append(Run(step, sample, sample + count * batch_size * RANKS, batch_size, RANKS))
        step, sample = runs[-1].end_batch, runs[-1].end_sample
    path = folder / "state.json"
    written = write_state(sample, packed_stream(state.stream), history_of(runs), state.planes)
    path.write_text(json.dumps(written))
    return path


def measured(*words: object) -> tuple[float, float]:
    """Run a command of the client.  Returns: seconds, and its most memory in MiB."""
    # What getrusage says of it begins with the memory of its parent.
    code = (
        "import sys; from tokenfeed.tools.__main__ import main; code = main(sys.argv[1:]); "
        "print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(code)"
    )
    begun = time.perf_counter()
    found = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - begun
    status = dict(line.split(":", 1) for line in found.stderr.splitlines() if ":" in line)
    return seconds, int(status["VmHWM"].split()[0]) / 1024


def report(seconds: float, memory_mib: float, output: Path) -> None:
    """Print the figures of one round."""
    size_mib = output.stat().st_size / _MIB
    with output.open() as file:
        lines = [json.loads(line) for line in file]
    (run,) = (line for line in lines if line["kind"] == "run")
    epochs = [line for line in lines if line["kind"] == "epochs"]
    rows = sum(line["rows"] * line["times"] * int(np.diff(line["epochs"])[0]) for line in epochs)
    assert rows == run["samples"]
    for name, found, limit, unit in (
        ("time", seconds, LIMIT_SECONDS, "s"),
        ("file", size_mib, LIMIT_MIB, "MiB"),
        ("memory", memory_mib, LIMIT_MIB, "MiB"),
    ):
        verdict = "met" if found < limit else "MISSED"
        print(f"{name} {found:.2f} {unit}, below {limit} {unit}: {verdict}", end="; ")
    print(f"{run['samples']:,} rows in {len(lines):,} lines")


if __name__ == "__main__":
    main()
