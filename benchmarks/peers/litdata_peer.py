"""litdata: the corpus as chunks of tokens, read by StreamingDataset with a TokensLoader.

Source: "LLM pre-training" in the README of github.com/Lightning-AI/litData (lightning.ai/docs):
`optimize` with a TokensLoader and chunks of a whole number of blocks, blocks of T + 1 tokens, a
StreamingDataLoader with shuffle and drop_last; from no worker to one per core. Blocks stay uint16
until they form a batch, which is faster than widening each one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.contender import main
from benchmarks.rows import BATCH_SIZE, ROW_TOKENS
from benchmarks.widen import widen

SETTINGS = {
    "0 workers": {"workers": 0},
    "1 worker": {"workers": 1},
    "2 workers": {"workers": 2},
}

_CHUNK_TOKENS = ROW_TOKENS * 8012  # as in the README: 32 MiB


@contextmanager
def batches(path: Path, *, workers: int) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(
        str(chunks(path)),
        item_loader=TokensLoader(block_size=ROW_TOKENS),
        shuffle=True,
        drop_last=True,
    )
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=workers, persistent_workers=workers > 0
    )
    yield _epochs(loader)


def _epochs(loader: torch.utils.data.DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        for rows in loader:
            yield widen(rows.numpy())


def chunks(path: Path) -> Path:
    """Return the folder of chunks next to the corpus. The first run creates it."""
    folder = path.with_suffix(".litdata")
    if not folder.exists():
        from litdata import TokensLoader, optimize

        count = path.stat().st_size // 2
        optimize(
            fn=partial(_piece, str(path)),
            inputs=list(range(0, count - _CHUNK_TOKENS + 1, _CHUNK_TOKENS)),
            output_dir=str(folder),
            chunk_size=_CHUNK_TOKENS,
            item_loader=TokensLoader(),
            num_workers=1,
            verbose=False,
        )
    return folder


def _piece(path: str, first: int) -> Iterator[torch.Tensor]:
    tokens = np.memmap(path, np.uint16, "r")[first : first + _CHUNK_TOKENS]
    yield torch.from_numpy(np.array(tokens))


if __name__ == "__main__":
    main(batches, SETTINGS)
