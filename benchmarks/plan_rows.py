"""How many rows should be planned at once? Nanoseconds per row, by order and number of rows.

Decides PLAN_ROWS in tokenfeed/sampling/plan.py and docs/decisions/0001-orders.md.
Run: python -m benchmarks.plan_rows
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.report import print_table
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowPieces
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.schedule import first_stage
from tokenfeed.stream.stage import Source
from tokenfeed.stream.stream import Stream

ROUNDS = 5
CALLS = 100
FILE_COUNTS = (1, 1000, 10_000)
SOURCE_COUNTS = (20, 200)


def main() -> None:
    """Print a table for each number of files, and one for mixtures."""
    for files in FILE_COUNTS:
        shape = Shape(np.full(files, 10**12 // files, dtype=np.int64))
        streams = {
            name: Stream.of_dataset("", order, 1337, 2048)
            for name, order in orders.OF_WINDOWS.items()
        }
        figures: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, stream in streams.items():
                for rows in (32, 256, 4096):
                    figures.setdefault(f"{name}, {rows} rows", []).append(
                        nanoseconds(stream, shape, rows)
                    )
            philox = figures.setdefault("numpy Philox, a run of 32 rows", [])
            philox.append(philox_nanoseconds(32))
        print_table(f"planning, {files} file(s)", "ns a row", figures)
    print_table("planning mixtures", "ns a row", mixtures())


class EqualRows:
    """Rows of three pieces of 600 tokens; DocumentRows, without a file."""

    row_count = 10**6
    piece_count = 3 * row_count
    pieces_hash = bytes(32)

    def pieces(self, rows: npt.NDArray[np.int64]) -> RowPieces:
        """Return the pieces of rows."""
        count = 3 * rows.size
        first_piece = np.arange(0, count + 1, 3)
        shard, token_count = np.zeros(count, np.int64), np.full(count, 600)
        return RowPieces(first_piece, shard, np.repeat(rows, 3) * 600, token_count)


def mixtures() -> dict[str, list[float]]:
    """Return the times per row of mixtures of windows, some with sources over documents."""
    figures: dict[str, list[float]] = {}
    for count in SOURCE_COUNTS:
        for packed in (0, 1, count):
            stream, shapes = mixture(count, packed)
            for rows in (160, 4096):
                samples = np.arange(rows, dtype=np.int64) * 8
                figures[f"{count} sources, {packed} packed, {rows} rows"] = [
                    _median_seconds(lambda: plan(stream, shapes, samples), 20) * 1e9 / rows  # noqa: B023
                    for _ in range(ROUNDS)
                ]
    return figures


def mixture(count: int, packed: int) -> tuple[Stream, list[Shape]]:
    """Return a mixture of sources of equal weight, and their shapes.  packed: over documents."""
    names = ["packed-1"] * packed + ["shuffled-1"] * (count - packed)
    sources = tuple(
        Source(f"s{number}", orders.find(name), 1337, number) for number, name in enumerate(names)
    )
    shapes = [Shape(np.array([10**10 + number], dtype=np.int64)) for number in range(count)]
    for shape in shapes:
        shape.document_rows = lambda key: EqualRows()
    stage = first_stage(2048, dict.fromkeys(range(count), 1))
    return Stream(1337, sources, (stage,)), shapes


def nanoseconds(stream: Stream, shape: Shape, rows: int) -> float:
    """Return the median time per row if this many are planned at once, on rank 0 of 8."""
    samples = np.arange(rows, dtype=np.int64) * 8
    return _median_seconds(lambda: plan(stream, [shape], samples)) * 1e9 / rows


def philox_nanoseconds(rows: int) -> float:
    """Return the time per row of numpy's counter-based generator, for one run of samples."""
    return (
        _median_seconds(lambda: np.random.Philox(key=1337, counter=7).random_raw(rows)) * 1e9 / rows
    )


def _median_seconds(call: Callable[[], object], calls: int = CALLS) -> float:
    taken = []
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
