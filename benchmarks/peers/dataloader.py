"""PyTorch's DataLoader over a local memmap: a sweep of the options in its documentation.

Source: docs.pytorch.org/docs/stable/data.html: automatic batching with the default collate function
("rows"), or, for datasets that read faster in bulk, `batch_size=None` and a sampler that yields
lists of indices ("batches"); workers, their prefetch factor, persistent workers. The sampler draws
with replacement, 32 indices at a time. Without replacement it would first permute all windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.contender import main
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, windows
from benchmarks.widen import widen

Pair = tuple[torch.Tensor, torch.Tensor]

SETTINGS = {
    "rows, 0 workers": {"bulk": False, "workers": 0},
    "rows, 1 worker": {"bulk": False, "workers": 1, "prefetch": 4},
    "rows, 2 workers": {"bulk": False, "workers": 2, "prefetch": 4},
    "batches, 0 workers": {"bulk": True, "workers": 0},
    "batches, 1 worker": {"bulk": True, "workers": 1, "prefetch": 2},
    "batches, 1 worker, 8 ahead": {"bulk": True, "workers": 1, "prefetch": 8},
    "batches, 2 workers": {"bulk": True, "workers": 2, "prefetch": 2},
    "batches, 2 workers, 8 ahead": {"bulk": True, "workers": 2, "prefetch": 8},
}

_ENDLESS = 1 << 40


class Windows(Dataset[Pair]):
    """All windows of the corpus, indexed by their first token."""

    def __init__(self, path: Path) -> None:
        """Map the corpus."""
        self._windows = windows(path)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def __getitem__(self, index: int | list[int]) -> Pair:
        """Return one row x and y [T], or those of a list as [B, T]."""
        if isinstance(index, list):
            return widen(self._windows[index])
        row = torch.from_numpy(self._windows[index].astype(np.int64))
        return row[:CONTEXT_LENGTH], row[1:]


@contextmanager
def batches(
    path: Path, *, bulk: bool, workers: int, prefetch: int | None = None
) -> Iterator[Iterator[Pair]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    dataset = Windows(path)
    rows = RandomSampler(dataset, replacement=True, num_samples=_ENDLESS)
    loader = DataLoader(
        dataset,
        batch_size=None if bulk else BATCH_SIZE,
        sampler=BatchSampler(rows, BATCH_SIZE, drop_last=True) if bulk else rows,
        num_workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=workers > 0,
    )
    # The workers start when the first batch is requested, as in a training loop.
    yield (batch for batch in loader)


if __name__ == "__main__":
    main(batches, SETTINGS)
