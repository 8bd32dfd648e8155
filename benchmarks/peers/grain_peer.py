"""grain: MapDataset over the mapped file, in this process or in worker processes.

Source: google-grain.readthedocs.io, "Dataset basics" (source, seed, shuffle, repeat, batch, with
`ReadOptions` for its reading threads), `IterDataset.mp_prefetch` for workers and
performance/autotuning.md, in docs/ of github.com/google/grain, for its settings. Rows stay uint16
until they form a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grain
import torch
from absl import flags

from benchmarks.contender import main
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, Rows, windows
from benchmarks.widen import widen

SETTINGS = {
    "no threads": {"threads": 0, "buffer": 0, "workers": 0},
    "1 thread, 4 ahead": {"threads": 1, "buffer": 4, "workers": 0},
    "2 threads, 16 ahead": {"threads": 2, "buffer": 16, "workers": 0},
    "16 threads, 500 ahead": {"threads": 16, "buffer": 500, "workers": 0},
    "1 worker": {"threads": 1, "buffer": 4, "workers": 1},
    "2 workers": {"threads": 1, "buffer": 4, "workers": 2},
}


class Windows:
    """Every window without overlap, as grain's random access source."""

    def __init__(self, path: Path) -> None:
        """Map the corpus."""
        self._path = path
        self._windows = windows(path)[::CONTEXT_LENGTH]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def __getitem__(self, index: int) -> Rows:
        """Return uint16 [T + 1], a view."""
        row: Rows = self._windows[index]
        return row

    def __reduce__(self) -> tuple[type[Windows], tuple[Path]]:
        """Pickle the path, not half a gigabyte of tokens."""
        return Windows, (self._path,)


@contextmanager
def batches(
    path: Path, *, threads: int, buffer: int, workers: int
) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    # Workers are started with absl's flags, which only an absl application has parsed.
    flags.FLAGS(["grain_peer"])
    dataset = (
        grain.MapDataset.source(Windows(path))
        .seed(1)
        .shuffle()
        .repeat()
        .batch(BATCH_SIZE)
        .to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer))
    )
    if workers:
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=4)
        dataset = dataset.mp_prefetch(options)
    yield map(widen, iter(dataset))


if __name__ == "__main__":
    main(batches, SETTINGS)
