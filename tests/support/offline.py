"""The rows that a server has to serve, computed from the files by tests/support/reference.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tests.support import reference

Batches = Iterable[tuple[ArrayLike, ArrayLike]]


def offline_rows(
    paths: list[Path], order: str, seed: int, context_length: int, samples: Iterable[int]
) -> np.ndarray:
    """The rows of some samples, int64[n, T + 1], by reference.py and from the files alone."""
    files = [path.read_bytes() for path in paths]
    rows = reference.rows(files, 2, order, seed, context_length, samples)
    return np.frombuffer(b"".join(rows), dtype="<u2").reshape(-1, context_length + 1).astype("i8")


def received_rows(batches: Batches) -> np.ndarray:
    """The rows of some batches, int64[n, T + 1], rebuilt from x and y."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in batches]
    return np.concatenate([np.column_stack([x, y[:, -1:]]) for x, y in pairs])
