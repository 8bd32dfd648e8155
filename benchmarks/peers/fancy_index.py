"""numpy's fancy indexing of the mapped corpus, in this process and one thread, then widened.

The limit for a local file: a batch costs its two copies and nothing else. It is not safe: if the
file is cut short while it is read, the process ends with SIGBUS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.contender import ONE_SETTING, main
from benchmarks.rows import random_rows
from benchmarks.widen import widen

SETTINGS = ONE_SETTING


@contextmanager
def batches(path: Path) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    yield map(widen, random_rows(path, 1))


if __name__ == "__main__":
    main(batches, SETTINGS)
