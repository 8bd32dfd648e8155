"""nanoGPT's get_batch, in this process, as in most single-file training loops.

Source: `get_batch` in train.py of github.com/karpathy/nanoGPT. As there, the map is reopened for
each batch, and each row is widened separately. There are no settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.contender import ONE_SETTING, main
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH

SETTINGS = ONE_SETTING


@contextmanager
def batches(path: Path) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    yield iter(lambda: get_batch(path), None)


def get_batch(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of random windows."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - CONTEXT_LENGTH, (BATCH_SIZE,))

    def rows(shift: int) -> torch.Tensor:
        slices = (tokens[i + shift : i + shift + CONTEXT_LENGTH] for i in starts)
        return torch.stack([torch.from_numpy(row.astype(np.int64)) for row in slices])

    return rows(0), rows(1)


if __name__ == "__main__":
    main(batches, SETTINGS)
