"""The run that the peers of benchmarks.packing_resume take part in, and their interface.

One epoch over documents of web-like lengths. A token is its own index in the corpus, so that a
target says which token of which document it is. One rank takes batches of 8 x 2048 and stops; some
ranks resume from its state and go on until the data ends.

A peer has SETTINGS, with a name for each way to use it, and `loaders(folder, **setting)`, a context
manager that yields a `Make`. Its last line is `main(loaders, SETTINGS)`, so that

    python -m benchmarks.peers.packing_resume.nanochat --folder FOLDER --stop 400 --ranks 2

prints the `Figures` of one run as JSON, or what was raised where the state is loaded.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.packing_lengths import drawn

DOCUMENTS = 20_480
ROW_GROUP = 1024
"""Documents of the corpus, and of each row group of its parquet file."""
BATCH_SIZE, CONTEXT_LENGTH = 8, 2048
NO_TARGET = -100

Batch = tuple[Any, Any]
"""x and y: integers [B, T]; y is NO_TARGET, or the token of another document, where none counts."""


class Loader(Protocol):
    """One rank."""

    def __iter__(self) -> Iterator[Batch]:
        """Go on until the epoch ends."""

    def state_dict(self) -> Any:
        """Return what a resumed loader needs."""


Make = Callable[[int, int, Any], Loader]
"""Rank, world size, and a state or None -> the loader of this rank."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What arrived.

    skipped, repeated: documents of which no target came, and of which one came twice.
    cropped: tokens of the other documents, behind their first, that were never a target.
    lost: the same, and those of the documents skipped.
    targets_repeated: how many targets came again.
    resume_seconds: until the first batch of all ranks after the stop.
    """

    skipped: int
    repeated: int
    cropped: int
    lost: int
    targets_repeated: int
    resume_seconds: float


def main(
    loaders: Callable[..., AbstractContextManager[Make]], settings: Mapping[str, Mapping[str, Any]]
) -> None:
    """Parse the arguments, take part in the run, and print what arrived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="of `write_corpus`")
    parser.add_argument("--stop", type=int, required=True, help="batches of the first rank")
    parser.add_argument("--ranks", type=int, required=True, help="that resume; 0: no stop")
    parser.add_argument("--setting", choices=settings, default=next(iter(settings)))
    arguments = parser.parse_args()
    # By default SIGTERM ends Python without running `finally`, so servers would outlive clients.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with loaders(arguments.folder, **settings[arguments.setting]) as make:
        print(json.dumps(run(make, arguments.stop, arguments.ranks)), flush=True)


def run(make: Make, stop: int, ranks: int) -> dict[str, Any]:
    """Return the figures, or the exception with which a state was refused."""
    count = Count()
    loader = make(0, 1, None)
    count.add(islice(loader, stop) if ranks else loader)
    if not ranks:
        return asdict(count.figures(0.0))
    state = loader.state_dict()
    begun = time.perf_counter()
    try:
        resumed = [iter(make(rank, ranks, state)) for rank in range(ranks)]
        count.add([next(one) for one in resumed])
    except Exception as error:  # noqa: BLE001 what a library raises is the result
        return {"refused": f"{type(error).__name__}: {error}"}
    seconds = time.perf_counter() - begun
    for one in resumed:
        count.add(one)
    return asdict(count.figures(seconds))


class Count:
    """How often each token was a target."""

    def __init__(self) -> None:
        """Begin with none."""
        self._firsts = first_tokens()
        self._times = np.zeros(self._firsts[-1], np.int64)

    def add(self, batches: Iterable[Batch]) -> None:
        """Count the targets of some batches."""
        for x, y in batches:
            before, targets = np.asarray(x), np.asarray(y)
            # The token behind another one, of the same document or of the next one.
            own, times = np.unique(targets[targets == before + 1], return_counts=True)
            self._times[own] += times

    def figures(self, seconds: float) -> Figures:
        """Return what arrived.  seconds: see `Figures`."""
        times = self._times.copy()
        times[self._firsts[:-1]] = 1  # counts neither as missing nor as repeated
        came = np.add.reduceat(times > 0, self._firsts[:-1]) > 1
        again = np.add.reduceat(times > 1, self._firsts[:-1]) > 0
        missing = np.add.reduceat(times == 0, self._firsts[:-1])
        return Figures(
            skipped=int((~came).sum()),
            repeated=int(again.sum()),
            cropped=int(missing[came].sum()),
            lost=int(missing.sum()),
            targets_repeated=int(np.maximum(times - 1, 0).sum()),
            resume_seconds=seconds,
        )


def first_tokens() -> npt.NDArray[np.int64]:
    """Return where documents begin, and where the last one ends: int64[DOCUMENTS + 1]."""
    return np.concatenate([[0], np.cumsum(drawn("web", DOCUMENTS))])


def write_corpus(folder: Path) -> None:
    """Write corpus.parquet, whose column `tokens` has a list for each document."""
    import pyarrow
    import pyarrow.parquet

    firsts = first_tokens()
    tokens = np.arange(firsts[-1], dtype=np.int32)
    column = pyarrow.ListArray.from_arrays(firsts.astype(np.int32), tokens)
    table = pyarrow.table({"tokens": column})
    pyarrow.parquet.write_table(table, folder / "corpus.parquet", row_group_size=ROW_GROUP)
