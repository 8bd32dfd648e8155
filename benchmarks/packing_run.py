"""The interface of the packers of benchmarks.packing, and the figures of what they return.

A packer has SETTINGS, with a name for each way to use it, and `pack(lengths, context_length,
**setting)`, which places documents of these lengths into rows. Its last line is
`main(pack, SETTINGS)`, so that

    python -m benchmarks.peers.packing.nanochat --lengths web.npy --context-length 2048

prints the `Figures` of one run as JSON. The time is that of `pack`: imports are done before.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Setting = Mapping[str, Any]

ONE_SETTING: Mapping[str, Setting] = {"": {}}
"""The SETTINGS of a packer without a choice."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Pieces of documents in rows.

    rows, lengths: int64[pieces] both, the row of each piece, and its tokens.  row_tokens: of a full
    row: T + 1, or T if its last token has no target.  overlaps: tokens that are in two pieces.
    documents: int64, lengths of those that the pieces are of; None: of all, each once.
    """

    rows: Numbers
    lengths: Numbers
    row_tokens: int
    overlaps: int = 0
    documents: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run.

    documents: that left the packer.  rows: their number.  bound: the rows that the tokens of all
    pieces would fill without padding.
    fill: share of the positions of x whose target is of the same document.
    cropped: share of the tokens that are in no row.
    untargeted: share of the tokens behind the first of their document that are never a target.
    padded: share of the tokens of all rows that are padding.
    pieces_99, pieces_max: pieces of a row, 99th percentile and most.
    seconds: to pack.  mebibytes: the most that the process had in memory.
    """

    documents: int
    rows: int
    bound: int
    fill: float
    cropped: float
    untargeted: float
    padded: float
    pieces_99: float
    pieces_max: int
    seconds: float
    mebibytes: float


def main(pack: Callable[..., Packed], settings: Mapping[str, Setting]) -> None:
    """Parse the arguments, pack, and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=Path, required=True, help="int64[documents], .npy")
    parser.add_argument("--context-length", type=int, required=True)
    parser.add_argument("--setting", choices=settings, default=next(iter(settings)))
    arguments = parser.parse_args()
    lengths = np.load(arguments.lengths)
    begun = time.perf_counter()
    packed = pack(lengths, arguments.context_length, **settings[arguments.setting])
    seconds = time.perf_counter() - begun
    figures = figures_of(lengths, arguments.context_length, packed, seconds)
    print(json.dumps(asdict(figures)), flush=True)


def figures_of(lengths: Numbers, context_length: int, packed: Packed, seconds: float) -> Figures:
    """Return the figures.  Raises: ValueError if a row is too long, or has more than there is."""
    if packed.documents is not None:
        lengths = packed.documents
    filled = np.bincount(packed.rows, packed.lengths).astype(np.int64)
    held = int(packed.lengths.sum())
    cropped = int(lengths.sum()) - (held - packed.overlaps)
    targets = held - packed.lengths.size
    wanted = int(np.maximum(lengths - 1, 0).sum())
    if filled.max() > packed.row_tokens or cropped < 0 or targets > wanted:
        raise ValueError("these are no rows of these documents")
    pieces = np.bincount(packed.rows)
    return Figures(
        documents=lengths.size,
        rows=filled.size,
        bound=-(-held // packed.row_tokens),
        fill=targets / (filled.size * context_length),
        cropped=cropped / int(lengths.sum()),
        untargeted=1 - targets / wanted,
        padded=1 - held / (filled.size * packed.row_tokens),
        pieces_99=float(np.percentile(pieces, 99)),
        pieces_max=int(pieces.max()),
        seconds=seconds,
        mebibytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
