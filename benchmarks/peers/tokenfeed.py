"""tokenfeed itself: the server and RemoteBatches, as the README shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.contender import ONE_SETTING, main, serving
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH
from client import RemoteBatches

SETTINGS = ONE_SETTING


@contextmanager
def batches(path: Path) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    command = ("server", "--data", str(path), "--host", "127.0.0.1", "--port", "0")
    with (
        serving(*command, "--log-level", "warning") as address,
        RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH) as feed,
    ):
        yield feed


if __name__ == "__main__":
    main(batches, SETTINGS)
