"""Hugging Face: a parquet file that `datasets` streams, packed by TRL's `pack_dataset`.

"state": each rank packs its share of the documents (`split_dataset_by_node`), and resumes from the
`state_dict` of its dataset.
"skip": each rank packs all documents and takes its share of the rows. The state is how many rows
were delivered; the rows before are made again and passed over (`IterableDataset.skip`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.distributed import split_dataset_by_node
from trl import pack_dataset

from benchmarks.packing_resume_run import (
    BATCH_SIZE,
    CONTEXT_LENGTH,
    NO_TARGET,
    Batch,
    Make,
    main,
)

SETTINGS = {"state": {"is_skipped": False}, "skip": {"is_skipped": True}}


class PackedLoader:
    """One rank."""

    def __init__(
        self, path: Path, rank: int, world_size: int, state: Any, *, is_skipped: bool
    ) -> None:
        """Begin, or go on from a state."""
        documents = datasets.load_dataset(
            "parquet", data_files=str(path), split="train", streaming=True
        )
        self._rows_passed = state if is_skipped and state else 0
        self._world_size, self._is_skipped = world_size, is_skipped
        if is_skipped:
            rows = pack_dataset(documents, CONTEXT_LENGTH, "bfd_split").skip(self._rows_passed)
            self._rows = split_dataset_by_node(rows, rank, world_size)
        else:
            share = split_dataset_by_node(documents, rank, world_size)
            self._rows = pack_dataset(share, CONTEXT_LENGTH, "bfd_split")
            if state:
                self._rows.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; the last one may be smaller."""
        rows = iter(self._rows)
        while batch := list(islice(rows, BATCH_SIZE)):
            self._rows_passed += len(batch) * self._world_size
            x = np.zeros((len(batch), CONTEXT_LENGTH), np.int64)
            y = np.full_like(x, NO_TARGET)
            for place, row in enumerate(batch):
                tokens = np.array(row["tokens"])
                x[place, : tokens.size] = tokens
                y[place, : tokens.size - 1] = tokens[1:]
            yield x, y

    def state_dict(self) -> Any:
        """Return the rows of all ranks, or the state of this rank's dataset."""
        return self._rows_passed if self._is_skipped else self._rows.state_dict()


@contextmanager
def loaders(folder: Path, *, is_skipped: bool) -> Iterator[Make]:
    """Yield what makes loaders."""
    yield lambda rank, world_size, state: PackedLoader(
        folder / "corpus.parquet", rank, world_size, state, is_skipped=is_skipped
    )


if __name__ == "__main__":
    main(loaders, SETTINGS)
