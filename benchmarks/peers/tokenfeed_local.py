"""tokenfeed on a local file: RemoteBatches reads it in this process, without a server.

By default a thread prefetches, as from a server. With `prefetch_bytes=0` there is no thread: a
batch is read when it is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.contender import main
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH
from client import RemoteBatches

SETTINGS = {"with its thread": {"ahead": True}, "without a thread": {"ahead": False}}


@contextmanager
def batches(path: Path, *, ahead: bool) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    options: dict[str, Any] = {} if ahead else {"prefetch_bytes": 0}
    with RemoteBatches(f"file:{path.resolve()}", BATCH_SIZE, CONTEXT_LENGTH, **options) as feed:
        yield feed


if __name__ == "__main__":
    main(batches, SETTINGS)
