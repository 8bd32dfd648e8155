"""The run that the peers of benchmarks.mixture_changes take part in, and their interface.

Three sources, weights of 70, 20 and 10 percent. 4 ranks take batches of 8, then the weights become
30, 30 and 40. The run goes on, stops, and resumes with 2 ranks that take batches of 12. It ends
after 12,000 rows.

A peer has SETTINGS, with a name for each way to use it, and `run(folder, seed, **setting)`, which
returns what arrived. Its last line is `main(run, SETTINGS)`, so that

    python -m benchmarks.peers.mixtures.grain_peer --folder FOLDER --seed 1 --setting NAME

prints a `Delivered` as JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.mixture_counts import SOURCE_ROWS, Codes, Order

SOURCES = ("web", "code", "math")
BEFORE = (70, 20, 10)
AFTER = (30, 30, 40)

CONTEXT_LENGTH = 4
"""Tokens of a row: source, index // 4096, index % 4096, 0."""
ROW_TOKENS = CONTEXT_LENGTH + 1
_HALF = 1 << 12

RANKS, BATCH_SIZE = 4, 8
CHANGE_STEP = 188
STOP_STEP = 282
"""Steps of 4 ranks before the weights change, and before the run stops."""
RESUMED_RANKS, RESUMED_BATCH_SIZE = 2, 12
CHANGED = CHANGE_STEP * RANKS * BATCH_SIZE
STOPPED = STOP_STEP * RANKS * BATCH_SIZE
TOTAL = 12_000
"""Rows before the change, before the stop, and in the whole run."""

Setting = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a peer delivered.

    rows: in the order of the steps, and within a step in the order that the peer has.
    orders: that the peer follows; see `gaps`.
    """

    rows: Sequence[int]
    orders: Sequence[Order]


def main(run: Callable[..., Delivered], settings: Mapping[str, Setting]) -> None:
    """Parse the arguments, take part in the run, and print what arrived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="of `write_sources`")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--setting", choices=settings, default=next(iter(settings)))
    arguments = parser.parse_args()
    # By default SIGTERM ends Python without running `finally`, so servers would outlive clients.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    delivered = run(arguments.folder, arguments.seed, **settings[arguments.setting])
    print(json.dumps(asdict(delivered)), flush=True)


def resumed_steps(ranks: int = RESUMED_RANKS, batch_size: int = RESUMED_BATCH_SIZE) -> int:
    """Return the steps from the stop to the end of the run."""
    steps, rest = divmod(TOTAL - STOPPED, ranks * batch_size)
    assert rest == 0
    return steps


def write_sources(folder: Path, sizes: Sequence[int]) -> None:
    """Write a raw uint16 file of each source, whose i-th row of CONTEXT_LENGTH tokens says so."""
    for source, (name, size) in enumerate(zip(SOURCES, sizes, strict=True)):
        index = np.arange(size)
        columns = (np.full(size, source), index // _HALF, index % _HALF, np.zeros(size))
        tokens = np.stack(columns, axis=1).reshape(-1)
        # The last row needs the token after it.
        np.append(tokens, 0).astype("<u2").tofile(folder / f"{name}.bin")


def rows_of(folder: Path, name: str) -> npt.NDArray[np.uint16]:
    """Return the rows of a source without overlap, as uint16 [n, T + 1]."""
    tokens = np.fromfile(folder / f"{name}.bin", "<u2")
    return np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)[::CONTEXT_LENGTH]


def codes(rows: Any) -> Codes:
    """Return which rows they are.  rows: integers [n, at least 3]."""
    table = np.asarray(rows).astype(np.int64)
    found: Codes = table[:, 0] * SOURCE_ROWS + table[:, 1] * _HALF + table[:, 2]
    return found


def interleaved(parts: Sequence[Codes]) -> list[int]:
    """Return the rows of one step where rank r of n has every n-th row, from the r-th on."""
    rows: list[int] = np.stack(parts, axis=1).reshape(-1).tolist()
    return rows


def concatenated(parts: Sequence[Codes]) -> list[int]:
    """Return the rows of one step where each rank has consecutive rows."""
    rows: list[int] = np.concatenate(parts).tolist()
    return rows
