"""torch's DataLoader over a local map of the file, swept over what its documentation offers:
single samples or whole batches at once (`__getitems__`), no workers or two, kept, with more or less
prefetching (https://docs.pytorch.org/docs/stable/data.html).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.peers.batch import ROW_TOKENS, B, counted

WORKERS = {"prefetch_factor": 4, "persistent_workers": True}
SETTINGS: dict[str, tuple[bool, dict[str, object]]] = {
    "samples": (False, {"num_workers": 0}),
    "samples-2-workers": (False, {"num_workers": 2, **WORKERS}),
    "batches": (True, {"num_workers": 0}),
    "batches-2-workers": (True, {"num_workers": 2, **WORKERS}),
    "batches-1-worker-ahead-16": (
        True,
        {"num_workers": 1, "prefetch_factor": 16, "persistent_workers": True},
    ),
}

Sample = tuple[torch.Tensor, torch.Tensor]


class Windows(Dataset[Sample]):
    """Every window of a flat file."""

    def __init__(self, path: str) -> None:
        """Map the file."""
        tokens = np.memmap(path, np.uint16, "r")
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def __getitem__(self, index: int) -> Sample:
        """Return one window, widened."""
        row = torch.from_numpy(self._windows[index].astype(np.int64))
        return row[:-1], row[1:]


class BatchesOfWindows(Windows):
    """The same, a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> Sample:
        """Return a batch, widened in one go."""
        rows = torch.from_numpy(self._windows[indices].astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def take(source: str, setting: str) -> Iterator[int]:
    """Iterate with one of SETTINGS."""
    whole, options = SETTINGS[setting]
    windows = BatchesOfWindows(source) if whole else Windows(source)
    # With replacement, or it would make a permutation of all windows first.
    sampler = RandomSampler(windows, replacement=True, num_samples=1 << 40)
    collate = (lambda batch: batch) if whole else None
    return counted(DataLoader(windows, B, sampler=sampler, collate_fn=collate, **options))
