"""How many rows should be planned at once? Nanoseconds per row, by order and number of rows.

Decides PLAN_ROWS in tokenfeed/sampling/plan.py and docs/decisions/0001-orders.md.
Run: python -m benchmarks.plan_rows
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import print_table
from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.spec import StreamSpec

ROUNDS = 5
CALLS = 100
FILE_COUNTS = (1, 1000)


def main() -> None:
    """Print a table for one file and one for a thousand."""
    for files in FILE_COUNTS:
        shape = Shape(np.full(files, 10**12 // files, dtype=np.int64))
        specs = {
            name: StreamSpec.of_dataset("", order, 1337, 2048)
            for name, order in orders.OF_WINDOWS.items()
        }
        figures: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, spec in specs.items():
                for rows in (32, 256, 4096):
                    figures.setdefault(f"{name}, {rows} rows", []).append(
                        nanoseconds(spec, shape, rows)
                    )
            philox = figures.setdefault("numpy Philox, a run of 32 rows", [])
            philox.append(philox_nanoseconds(32))
        print_table(f"planning, {files} file(s)", "ns a row", figures)


def nanoseconds(spec: StreamSpec, shape: Shape, rows: int) -> float:
    """Return the median time per row if this many are planned at once, on rank 0 of 8."""
    samples = np.arange(rows, dtype=np.int64) * 8
    return _median_seconds(lambda: plan(spec, [shape], samples)) * 1e9 / rows


def philox_nanoseconds(rows: int) -> float:
    """Return the time per row of numpy's counter-based generator, for one run of samples."""
    return (
        _median_seconds(lambda: np.random.Philox(key=1337, counter=7).random_raw(rows)) * 1e9 / rows
    )


def _median_seconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
