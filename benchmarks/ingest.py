"""Is text tokenized at the speed of the tokenizer? Whole commands, from start to end, in turn.

Each contender is a process that imports what it needs, reads the same parquet files and writes its
tokens: the bare loop over `tokenizers.encode_batch`, datatrove's tokenizer step, and `tokenfeed
ingest` with each engine (fastokens is probed before). nanochat's loader makes rows instead. Then
the steps of an ingest are timed, with the first size. The text is paragraphs of tiny Shakespeare in
random order. Needs datatrove and tiktoken.
Run: python -m benchmarks.ingest DATA_FOLDER [--megabytes-per-file 10 100] [--rounds 5]
     [--skip datatrove nanochat]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import ROOT, folder_on_disk

TOKENIZER = "gpt2-tokenizer.json"
END = "<|endoftext|>"
FILES = 4
GOALS = {10: 0.7, 100: 0.85}
"""Of the bare loop's speed, by megabytes per file."""
PEERS = {
    "encode_batch": "benchmarks.peers.encode_batch",
    "datatrove": "benchmarks.peers.datatrove_step",
    "nanochat": "benchmarks.peers.nanochat_loader",
}
OURS = "tokenfeed"
BY_TOKENIZERS = "tokenfeed, tokenizers"
_PR_SET_CHILD_SUBREAPER = 36


class Run(NamedTuple):
    """One run.  cpu_seconds: user and system, of all its processes.  mebibytes: of the largest."""

    seconds: float
    cpu_seconds: float
    mebibytes: float


def main() -> None:
    """Print the speed, the processor time and the memory of each, and the steps of ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="with tinyshakespeare.txt and gpt2-tokenizer.json")
    parser.add_argument("--megabytes-per-file", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip", choices=PEERS, nargs="*", default=[])
    arguments = parser.parse_args()
    tokenizer = arguments.data / TOKENIZER
    text = arguments.data / "tinyshakespeare.txt"
    # Processes that outlive the command that started them become ours, so `timed` counts them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with folder_on_disk() as folder:
        # Every contender's modules are compiled before, as installed packages are.
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        os.environ["PYTHONWARNINGS"] = "ignore"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for megabytes in (0, *arguments.megabytes_per_file):
            pages, out = folder / "pages", folder / "out"
            # In a separate process: a child's peak memory starts from the memory of its parent.
            writer = get_context("fork").Process(target=write_pages, args=(pages, text, megabytes))
            writer.start()
            writer.join()
            commands = {
                name: [sys.executable, "-m", module, str(pages), str(tokenizer), str(out)]
                for name, module in PEERS.items()
                if name not in arguments.skip
            }
            for name, engine in ((OURS, "fastokens"), (BY_TOKENIZERS, "tokenizers")):
                command = ours("tokenfeed.server.ingest", pages, tokenizer, out)
                commands[name] = [*command, "--tokenizer-engine", engine]
            runs, tokens = measured(commands, out, arguments.rounds if megabytes else 1)
            if megabytes:
                report(megabytes, runs, tokens)
            if megabytes == arguments.megabytes_per_file[0]:
                print_steps(pages, tokenizer, out, arguments.rounds)
            shutil.rmtree(pages)


def measured(
    commands: dict[str, list[str]], out: Path, rounds: int
) -> tuple[dict[str, list[Run]], int]:
    """Run all commands in turn, every other round in reverse order.

    Returns: the runs of each, and the number of tokens, with those that end documents.
    """
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    tokens = 0
    for number in range(rounds):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            runs[name].append(timed(commands[name]))
            if name == OURS:
                made = json.loads((out / "manifest.json").read_text())
                tokens = made["splits"]["train"]["tokens"]
            shutil.rmtree(out)
    return runs, tokens


def ours(module: str, pages: Path, tokenizer: Path, out: Path, *first: str) -> list[str]:
    """Return the command of an ingest."""
    words = [*first, str(pages), "--out", str(out), "--tokenizer", str(tokenizer)]
    return [sys.executable, "-m", module, *words, "--append-token", END]


def timed(command: Sequence[str]) -> Run:
    """Run a command from its start to its end; its output is shown if it fails."""
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        # Unlike wait(), it tells what the process and its children used.
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}:\n{said}")
    of_all = [used]
    with suppress(ChildProcessError):
        while True:
            of_all.append(os.wait4(-1, 0)[2])
    return Run(
        seconds,
        sum(used.ru_utime + used.ru_stime for used in of_all),
        max(used.ru_maxrss for used in of_all) / 1024,
    )


def report(megabytes: int, runs: dict[str, list[Run]], tokens: int) -> None:
    """Print the tables of one size of file."""
    title = f"{FILES} parquet files, {megabytes} MB of text each, {tokens:,} tokens"
    speeds = {name: [tokens / run.seconds / 1e3 for run in of] for name, of in runs.items()}
    print_table(title, "ktok/s", speeds)
    cpu_seconds = {name: [run.cpu_seconds for run in of] for name, of in runs.items()}
    print_table("user and system time of all processes", "s", cpu_seconds)
    memory = {name: [run.mebibytes for run in of] for name, of in runs.items()}
    print_table("memory of the largest process", "MiB", memory)
    for name in (*PEERS, BY_TOKENIZERS):
        if name in runs:
            ratios = np.array(speeds[OURS]) / np.array(speeds[name])
            goal = GOALS.get(megabytes) if name == "encode_batch" else None
            print(
                f"{OURS} / {name}, median of the rounds: {np.median(ratios):.2f}, "
                f"{ratios.min():.2f} to {ratios.max():.2f}{f', goal {goal}' if goal else ''}"
            )


def print_steps(pages: Path, tokenizer: Path, out: Path, rounds: int) -> None:
    """Print how long each step of an ingest takes, median of the rounds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        begun = time.time()
        command = ours("benchmarks.ingest_steps", pages, tokenizer, out, str(begun))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        ended = time.time() - begun
        steps = [*json.loads(done.stdout.splitlines()[-1]), ("Python ends", ended)]
        before = 0.0
        for name, at in steps:
            found.setdefault(name, []).append(at - before)
            before = at
        shutil.rmtree(out)
    print(f"the steps of {OURS}, median of {rounds}")
    for name, seconds in found.items():
        print(f"{statistics.median(seconds):8.3f} s  {name}")


def write_pages(folder: Path, source: Path, megabytes: int) -> None:
    """Write files with this much text each, in documents of ten paragraphs; at least one each."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    choose = random.Random(1)
    paragraphs = source.read_text().split("\n\n")
    for number in range(FILES):
        documents, size = [], 0
        while not documents or size < megabytes * 1_000_000:
            documents.append("\n\n".join(choose.choices(paragraphs, k=10)))
            size += len(documents[-1])
        table = pyarrow.table({"text": documents})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=1000)


if __name__ == "__main__":
    main()
