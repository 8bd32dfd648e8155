"""What arrived of a mixture: rows that came too often or never, and the shares. Pure.

A row is one integer: SOURCE_ROWS * source + index of the row in its source. All counts see only
the rows in the order in which the trainer got them, and what the mixture should have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SOURCE_ROWS = 1 << 24
"""More than a source has."""
WINDOW = 1000
"""Rows over which a share is taken."""

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Rows that were asked for with the same weights.

    first, end: of the rows delivered, end excluded.  weights: of the sources, in percent.
    """

    first: int
    end: int
    weights: Sequence[int]


@dataclass(frozen=True, slots=True)
class Order:
    """An order that a loader follows for a part of the run.

    first, end: of the rows delivered, end excluded.  rows: in that order, each one once.
    """

    first: int
    end: int
    rows: Sequence[int]


def excess(rows: Codes, sizes: Mapping[int, int]) -> tuple[int, int]:
    """Return how many rows came too often, and how many times a row is missing.

    Of a source with n rows of which d were delivered, each row should have come floor(d / n) times,
    or once more. So while no epoch has ended, what came twice came too often, and none is missing.
    sizes: n of each source.
    """
    often, missing = 0, 0
    for source, size in sizes.items():
        own = rows[rows // SOURCE_ROWS == source] % SOURCE_ROWS
        if own.size and own.max() >= size:
            raise ValueError(f"source {source} has {size} rows, but row {own.max()} arrived")
        times = np.bincount(own, minlength=size)
        often += int(np.maximum(times - -(-own.size // size), 0).sum())
        missing += int(np.maximum(own.size // size - times, 0).sum())
    return often, missing


def gaps(rows: Codes, orders: Iterable[Order]) -> int:
    """Return how many rows of the orders did not come, although a later one of the order came.

    Raises: ValueError if a row came in a part of the run, and is in no order of that part: then the
    orders are not those of the loader, and would hide what was lost.
    """
    lost = 0
    strays: dict[tuple[int, int], set[int]] = {}
    for order in orders:
        part = (order.first, order.end)
        came = set(rows[slice(*part)].tolist())
        places = [place for place, row in enumerate(order.rows) if row in came]
        lost += places[-1] + 1 - len(places) if places else 0
        strays[part] = strays.get(part, came).difference(order.rows)
    for (first, end), rest in strays.items():
        if rest:
            raise ValueError(f"{len(rest)} of the rows from {first} to {end} are in no order")
    return lost


def window_error(rows: Codes, phase: Phase) -> float:
    """Return the largest error of a share in any WINDOW of consecutive rows, in percentage points.

    The windows begin with the phase and do not overlap. One that the phase does not fill is left
    out.
    """
    starts = range(phase.first, phase.end - WINDOW + 1, WINDOW)
    return max(share_error(rows, Phase(at, at + WINDOW, phase.weights)) for at in starts)


def share_error(rows: Codes, phase: Phase) -> float:
    """Return the largest error of a share in a phase, in percentage points."""
    sources = rows[phase.first : phase.end] // SOURCE_ROWS
    shares = 100 * np.bincount(sources, minlength=len(phase.weights)) / len(sources)
    return float(np.abs(shares - np.array(phase.weights)).max())
