"""nanoGPT's way, on a local file: the map is opened anew for each batch, its rows are widened one
by one and stacked (get_batch in train.py of https://github.com/karpathy/nanoGPT).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.peers.batch import B, T, counted


def take(source: str) -> Iterator[int]:
    """Draw batches for ever."""
    return counted(iter(lambda: draw(source), None))


def draw(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one batch of random windows."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - T, (B,)).tolist()

    def stacked(shift: int) -> torch.Tensor:
        rows = (tokens[start + shift : start + shift + T] for start in starts)
        return torch.stack([torch.from_numpy(row.astype(np.int64)) for row in rows])

    return stacked(0), stacked(1)
