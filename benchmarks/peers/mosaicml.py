"""MosaicML streaming: the corpus as MDS shards, read by StreamingDataset.

Source: docs.mosaicml.com/projects/streaming ("Main concepts", "Basic dataset conversion",
"Performance tuning"): MDS, its fastest format, with an `ndarray` column of static type and shape;
local shards, `batch_size` given to the dataset as well, the default shuffle; and from no worker of
the DataLoader to one per core. Rows stay uint16 until they form a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.contender import main
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, ROW_TOKENS, windows
from benchmarks.widen import widen

SETTINGS = {
    "0 workers": {"workers": 0},
    "1 worker": {"workers": 1},
    "2 workers": {"workers": 2},
}


@contextmanager
def batches(path: Path, *, workers: int) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    require_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(shards(path)), shuffle=True, batch_size=BATCH_SIZE)
    loader = DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    yield _epochs(loader)


def _epochs(loader: DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        for sample in loader:
            yield widen(sample["tokens"].numpy())


def shards(path: Path) -> Path:
    """Return the folder of shards next to the corpus. The first run creates it."""
    folder = path.with_suffix(".mds")
    if not folder.exists():
        from streaming import MDSWriter

        columns = {"tokens": f"ndarray:uint16:{ROW_TOKENS}"}
        with MDSWriter(out=str(folder), columns=columns) as writer:
            for row in windows(path)[::CONTEXT_LENGTH]:
                writer.write({"tokens": np.ascontiguousarray(row)})
    return folder


def require_torchvision() -> None:
    """Replace torchvision by stubs if it cannot be imported.

    `streaming` imports it for its image datasets. The wheel of PyPI cannot be imported with a torch
    without CUDA.
    """
    try:
        import torchvision.datasets  # noqa: F401
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = ModuleType(f"torchvision{name}")
            # The image datasets need a base class and a function at import. They are never used.
            vars(module).update(VisionDataset=object, CIFAR10=object, to_tensor=None)
            module.__spec__ = ModuleSpec(module.__name__, None)
            sys.modules[module.__name__] = module


if __name__ == "__main__":
    main(batches, SETTINGS)
