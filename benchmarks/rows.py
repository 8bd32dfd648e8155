"""The corpus that contenders share, and its rows. Needs only numpy, so that servers start fast."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

BATCH_SIZE = 32
CONTEXT_LENGTH = 2048
ROW_TOKENS = CONTEXT_LENGTH + 1
BATCH_TOKENS = BATCH_SIZE * CONTEXT_LENGTH
BATCH_BYTES = BATCH_SIZE * ROW_TOKENS * 2
"""Of a batch as it travels: uint16 [B, T + 1]."""
VOCAB_SIZE = 50_257

FRAME_BATCHES = 8
"""Batches per message: about 1 MiB, like the frames of tokenfeed."""

Rows = npt.NDArray[np.uint16]

_PREPARED_FRAMES = 32
_BLOCK_TOKENS = 1 << 24


def write_corpus(path: Path, tokens: int) -> None:
    """Write a file of random uint16 tokens, and wait until it is on the disk, because pending
    writes would disturb the first runs.
    """
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, tokens, _BLOCK_TOKENS):
            count = min(_BLOCK_TOKENS, tokens - first)
            random.integers(0, VOCAB_SIZE, count, dtype=np.uint16).tofile(file)
        os.fsync(file.fileno())


def windows(path: Path) -> Rows:
    """Return all windows of T + 1 tokens as uint16 [tokens - T, T + 1], a view of the mapped file.

    Fancy indexing copies rows out of it and releases the GIL meanwhile.
    """
    tokens: Rows = np.memmap(path, np.uint16, "r")
    return np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)


def random_rows(path: Path, batches: int) -> Iterator[Rows]:
    """Yield uint16 [batches * B, T + 1] from random offsets of the corpus, endlessly."""
    all_windows = windows(path)
    random = np.random.default_rng(1)
    while True:
        yield all_windows[random.integers(0, len(all_windows), batches * BATCH_SIZE)]


def prepared_rows(path: Path, batches: int) -> list[Rows]:
    """Return rows like those of `random_rows`, made in advance, to measure only the transport.

    32 MiB, so that they do not all fit into the CPU's inner caches.
    """
    rows = random_rows(path, batches)
    return [next(rows) for _ in range(_PREPARED_FRAMES * FRAME_BATCHES // batches)]
