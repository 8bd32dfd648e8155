"""grain on a local file: MapDataset over a random access source, shuffled, batched, converted to an
IterDataset with read threads (https://google-grain.readthedocs.io, DataLoader and Dataset guides).
"""

from __future__ import annotations

from collections.abc import Iterator

import grain
import numpy as np

from benchmarks.peers.batch import ROW_TOKENS, B, counted, widened


class Windows:
    """A random access source: every window of a flat file."""

    def __init__(self, path: str) -> None:
        """Map the file."""
        tokens = np.memmap(path, np.uint16, "r")
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return one window."""
        return self._windows[index]


def take(source: str) -> Iterator[int]:
    """Iterate over shuffled batches."""
    dataset = grain.MapDataset.source(Windows(source)).seed(0).shuffle().repeat().batch(B)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
    return counted(widened(rows) for rows in dataset.to_iter_dataset(read_options=options))
