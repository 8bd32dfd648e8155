"""python -m tests.tokenfeed.tools.redact.kills: kill -9 at seeded moments of `--erase`.

An erasure is run by a process that counts its calls of the file system and kills itself at the N-th
call: in the middle of a write, before a sync, before and after a rename. Each file is then the old
or the new one, and the dataset can be opened. The command goes on, and the dataset is still what it
was.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from tests.support.dying import die_at
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.formats import FormatOptions

ROOT = Path(__file__).parents[4]
CALLS = ("pwrite", "fsync", "replace")
DELIMITER = 7
RANGES = [(0, 0, 40), (0, 90, 130), (0, 600_000, 6_000_000), (2, 5, 6), (2, 100, 400)]
"""Longer than a write of 1 MiB, at both ends of a file, and one token."""


def make_corpus(folder: Path) -> list[Path]:
    """Write three files of documents that end in a token."""
    folder.mkdir()
    seeded = np.random.default_rng(5)
    paths = []
    for number, (count, document) in enumerate([(6_000_000, 2500), (300, 25), (400, 25)]):
        tokens = seeded.integers(8, 60_000, count).astype("<u2")
        tokens[document - 1 :: document] = DELIMITER
        paths.append(folder / f"{number}.bin")
        tokens.tofile(paths[-1])
    return paths


def erased(content: list[bytes], fill: int = 0) -> list[bytes]:
    """What the files hold afterwards."""
    files = [np.frombuffer(each, "<u2").copy() for each in content]
    for file, first, end in RANGES:
        part = files[file][first:end]
        part[part != DELIMITER] = fill
    return [tokens.tobytes() for tokens in files]


def words(paths: list[Path]) -> list[str]:
    """Arguments of `tokenfeed redact` that add the ranges and erase them."""
    given = [f"--range={file}:{first}:{end}" for file, first, end in RANGES]
    erase = ["--erase", f"--document-end-token={DELIMITER}"]
    return [*map(str, paths), *given, *erase]


def opened(paths: list[Path]) -> Dataset:
    """Open a dataset as a server does.  Raises: InvalidCorpus."""
    source = DatasetSource("train", tuple(map(str, paths)))
    return open_dataset(source, FormatOptions(), TokenChecks())


def run_and_die(call: str, number: int, arguments: list[str]) -> int:
    """Erase in this process, which dies at the number-th such call.  Returns: if it does not."""
    from tokenfeed.tools.redact.__main__ import main

    counts = die_at(call, number, CALLS)
    code = main(arguments)
    print("counts", *counts.values(), file=sys.stderr)
    return code


def run(arguments: list[str], call: str = "", number: int = 0) -> subprocess.CompletedProcess[str]:
    """Erase in another process, which dies at a call."""
    module = "tests.tokenfeed.tools.redact.kills"
    command = [sys.executable, "-m", module, "--die", call, str(number), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def call_counts(folder: Path) -> dict[str, int]:
    """How many calls an undisturbed erasure makes."""
    done = run(words(make_corpus(folder / "undisturbed")))
    assert done.returncode == 0, done.stderr
    return dict(zip(CALLS, map(int, done.stderr.splitlines()[-1].split()[1:]), strict=True))


def moments(counts: dict[str, int], number: int, seed: int) -> list[tuple[str, int]]:
    """Return `number` moments: all syncs and renames if they fit, and writes."""
    choose = random.Random(seed)
    rare = [(call, one) for call in CALLS[1:] for one in range(1, counts[call] + 1)]
    rare = choose.sample(rare, min(number, len(rare)))
    writes = choose.sample(range(1, counts["pwrite"] + 1), number - len(rare))
    return sorted([*rare, *(("pwrite", one) for one in writes)])


def check(folder: Path, call: str, number: int) -> str:
    """Kill one erasure and finish it.  Returns: in which state it was.  Raises: AssertionError."""
    folder = folder / f"{call}-{number}"
    paths = make_corpus(folder)
    before = [path.read_bytes() for path in paths]
    with closing(opened(paths)) as dataset:
        known = dataset.fingerprint, dataset.digest
    died = run(words(paths), call, number)
    assert died.returncode == -signal.SIGKILL, died.stderr
    now, new = [path.read_bytes() for path in paths], erased(before)
    assert all(one in both for one, both in zip(now, zip(before, new, strict=True), strict=True))
    are_new = {
        one == after for one, old, after in zip(now, before, new, strict=True) if old != after
    }
    state = "mixed" if len(are_new) == 2 else "new" if are_new.pop() else "old"
    with closing(opened(paths)) as dataset:
        assert (dataset.fingerprint, dataset.digest) == known
    finished = run(words(paths))
    assert finished.returncode == 0, finished.stderr
    assert [path.read_bytes() for path in paths] == erased(before)
    with closing(opened(paths)) as dataset:
        assert (dataset.fingerprint, dataset.digest) == known
        assert dataset.redactions is not None
        assert dataset.redactions.erased is not None
        assert dataset.redactions.erased.ranges.triples() == RANGES
    left = [path for path in folder.iterdir() if path.suffix in (".partial", ".tokenfeed-erasing")]
    assert left == []
    shutil.rmtree(folder)
    return state


def main(argv: Sequence[str] | None = None) -> int:
    """Kill erasures, each at another moment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", nargs=argparse.REMAINDER)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.die is not None:
        call, number, *rest = arguments.die
        return run_and_die(call, int(number), rest)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = call_counts(folder)
        print(f"calls: {counts}")
        for call, number in moments(counts, arguments.kills, arguments.seed):
            print(f"{call} {number}: {check(folder, call, number)}, finished", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
