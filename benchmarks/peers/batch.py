"""The batch that everybody delivers, and the check that it is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

B, T = 32, 2048
ROW_TOKENS = T + 1
BATCH_BYTES = B * ROW_TOKENS * 2


def counted(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[int]:
    """Yield the tokens of each batch, after a look at the first: int64 (x, y) of [B, T]."""
    for index, (x, y) in enumerate(batches):
        if index == 0:
            assert x.shape == y.shape == (B, T)
            assert x.dtype == y.dtype == torch.int64
            assert torch.equal(x[:, 1:], y[:, :-1])
        yield x.numel()


def widened(rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint16 rows [B, T + 1] as int64 (x, y), one copy each."""
    x, y = (torch.empty((B, T), dtype=torch.int64) for _ in range(2))
    np.copyto(x.numpy(), rows[:, :-1])
    np.copyto(y.numpy(), rows[:, 1:])
    return x, y


def random_windows(path: str, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield uint16[B, T + 1] of random windows of a flat file, for servers without a plan."""
    tokens = np.memmap(path, np.uint16, "r")
    windows = np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)
    numbers = np.random.default_rng(seed)
    while True:
        yield windows[numbers.integers(0, len(windows), B)]
