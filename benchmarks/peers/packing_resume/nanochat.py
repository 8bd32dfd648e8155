"""nanochat's loader, its rule written again from its nanochat/dataloader.py.

Rank r of n reads every n-th row group of the parquet file, from the r-th on, into a buffer of a
thousand documents. A row of T + 1 tokens takes the longest one that fits, again and again; if none
fits, the shortest one is cropped to what is left. The state is the number of the row group that was
read last, g. Resumed, rank r begins with row group (g // n + 1) n + r, and an empty buffer.

Here tokens come from the file instead of a tokenizer, and at the end of the data the buffer is used
up, except for the last row if it is not full; nanochat goes on with the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet

from benchmarks.packing_resume_run import BATCH_SIZE, CONTEXT_LENGTH, Batch, Make, main

SETTINGS: dict[str, dict[str, Any]] = {"": {}}
BUFFER = 1000
READ = 128

Tokens = npt.NDArray[np.int32]


class RowGroupLoader:
    """One rank."""

    def __init__(
        self, path: Path, rank: int, world_size: int, state: dict[str, int] | None
    ) -> None:
        """Begin, or begin behind the row group of a state."""
        self._file = pyarrow.parquet.ParquetFile(path)
        passed = state["row_group"] // world_size + 1 if state else 0
        self._first, self._step = passed * world_size + rank, world_size
        self._buffer: list[Tokens] = []
        self._row_group = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; the last one may be smaller."""
        rows = self._rows(self._documents())
        while batch := list(islice(rows, BATCH_SIZE)):
            tokens = np.stack(batch)
            yield tokens[:, :-1], tokens[:, 1:]

    def state_dict(self) -> dict[str, int]:
        """Return the row group that was read last."""
        return {"row_group": self._row_group}

    def _documents(self) -> Iterator[list[Tokens]]:
        for row_group in range(self._first, self._file.num_row_groups, self._step):
            self._row_group = row_group
            column = self._file.read_row_group(row_group).column("tokens").combine_chunks()
            documents = np.split(column.flatten().to_numpy(), column.offsets.to_numpy()[1:-1])
            for first in range(0, len(documents), READ):
                yield documents[first : first + READ]

    def _rows(self, documents: Iterator[list[Tokens]]) -> Iterator[Tokens]:
        while True:
            row: list[Tokens] = []
            room = CONTEXT_LENGTH + 1
            while room:
                while len(self._buffer) < BUFFER and (more := next(documents, None)):
                    self._buffer += more
                if not self._buffer:
                    return
                row.append(self._buffer.pop(self._choice(room))[:room])
                room -= row[-1].size
            yield np.concatenate(row)

    def _choice(self, room: int) -> int:
        """Return the place of the longest document that fits, else of the shortest one."""
        sizes = np.array([document.size for document in self._buffer])
        fitting = np.where(sizes <= room, sizes, 0)
        return int(fitting.argmax() if fitting.any() else sizes.argmin())


@contextmanager
def loaders(folder: Path) -> Iterator[Make]:
    """Yield what makes loaders."""
    yield lambda rank, world_size, state: RowGroupLoader(
        folder / "corpus.parquet", rank, world_size, state
    )


if __name__ == "__main__":
    main(loaders, SETTINGS)
