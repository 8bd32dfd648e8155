"""litdata on local chunks: optimize with TokensLoader, read by StreamingDataset and
StreamingDataLoader (https://github.com/Lightning-AI/litdata, "LLM pre-training").
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

from benchmarks.peers.batch import ROW_TOKENS, B, counted

PART_TOKENS = 5_000_000
PARTS = 10


def parts(index: int, path: str) -> Iterator[torch.Tensor]:
    """Yield a part of the corpus, as documents are given."""
    tokens = np.memmap(path, np.uint16, "r")
    yield torch.from_numpy(tokens[index * PART_TOKENS : (index + 1) * PART_TOKENS].astype(np.int64))


def take(source: str) -> Iterator[int]:
    """Make the chunks, where they are missing, and iterate over shuffled batches."""
    chunks = Path(source).with_suffix(".litdata")
    if not (chunks / "index.json").exists():
        shutil.rmtree(chunks, ignore_errors=True)
        optimize(
            fn=partial(parts, path=source),
            inputs=list(range(PARTS)),
            output_dir=str(chunks),
            chunk_size=ROW_TOKENS * 8012,
            item_loader=TokensLoader(),
            num_workers=1,
        )
    dataset = StreamingDataset(
        str(chunks), item_loader=TokensLoader(block_size=ROW_TOKENS), shuffle=True
    )
    return counted(forever(StreamingDataLoader(dataset, batch_size=B, num_workers=0)))


def forever(loader: StreamingDataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (x, y), epoch after epoch."""
    while True:
        for rows in loader:
            if len(rows) == B:
                yield rows[:, :-1].long(), rows[:, 1:].long()
