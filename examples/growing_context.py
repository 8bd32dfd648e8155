"""Trains a tiny model on two ranks whose context grows: 512, then 1,024, then 4,096 tokens.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/growing_context.py

The corpus is the documentation that comes with every Python, some times over: 20 blocks of 2^19
tokens, in two groups of 10. A change begins at the end of a group, so both are asked for at once,
and no token is left out or comes twice. Batches keep their tokens. A loop of one length lacks the
lines at GROWTH; those at STEPS only keep this run short, which skips most of each group.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from serving import BYTE_VALUES, documentation
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from tokenfeed import RemoteBatches

CONTEXT_LENGTH, BATCH_SIZE = 512, 48
"""At first. 48 rows of 512 tokens are 6 of 4,096."""
GROWTH = {1: 1024, 11_000: 4096}
"""Sample at which it is asked for -> context length."""
STEPS = 8
"""Of each length at most, and one more that is filled up."""
BLOCKS, BLOCK_TOKENS, GROUP_TOKENS = 20, 1 << 19, 1 << 23


def main() -> int:
    """Train some steps at each context length.  Returns: 0."""
    if "RANK" not in os.environ:
        raise SystemExit("error: no RANK; run it with python -m torch.distributed.run")
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        train(f"file:{write_corpus(Path(folder))}")
    dist.destroy_process_group()
    return 0


def write_corpus(folder: Path) -> Path:
    """Write bytes of the documentation as tokens, to a file of whole blocks."""
    tokens = np.frombuffer(documentation().encode(), np.uint8)
    path = folder / "documentation.bin"
    np.resize(tokens, BLOCKS * BLOCK_TOKENS + 1).astype("<u2").tofile(path)
    return path


class Model(nn.Module):
    """One head of attention, without positions: it takes rows of any length."""

    def __init__(self) -> None:
        """Create the weights, the same on every rank."""
        super().__init__()
        self.embedding = nn.Embedding(BYTE_VALUES, 16)
        self.attention = nn.Linear(16, 48)
        self.head = nn.Linear(16, BYTE_VALUES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each position.  x: [B, T]."""
        hidden = self.embedding(x)
        queries, keys, values = self.attention(hidden).unsqueeze(1).chunk(3, -1)
        seen = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        logits: Tensor = self.head(hidden + seen.squeeze(1))
        return logits


def train(target: str) -> None:
    """Train, and print what changes with the context length."""
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    options = {"order": "blocks", "group_tokens": GROUP_TOKENS, "seed": 1337}
    with RemoteBatches(target, BATCH_SIZE, CONTEXT_LENGTH, **options) as feed:
        begins = []
        for at_sample, context_length in GROWTH.items():
            begins.append(feed.change_context_length(context_length, at_sample=at_sample))
            log(f"context length {context_length} from sample {begins[-1]} on")
        for begin in (*begins, None):
            began, losses = time.perf_counter(), list[float]()
            for _ in range(STEPS):
                losses.append(step(model, optimizer, *next(feed)))
            rows, length = feed.batch_size, feed.context_length
            rate = STEPS * rows * length / (time.perf_counter() - began)
            log(f"{rows} x {length}, {rows * length} tokens a step and rank, {rate:.0f} a second")
            log(f"loss of rank 0: {losses[0]:.3f} -> {losses[-1]:.3f}")
            if begin is not None:
                feed.skip(begin - rows // 2 - feed.position.samples)
                x, y = next(feed)
                padding = int((y == -100).all(1).sum())
                print(
                    f"rank {dist.get_rank()}: {padding} of {rows} rows fill up a batch", flush=True
                )
                step(model, optimizer, x, y)
        log(str(feed.stats()))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Train on a batch, together with the other rank.  Returns: the loss of this rank."""
    optimizer.zero_grad()
    # The mean of a rank that has no own row would be 0 / 0.
    loss = cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / y.numel()
    loss.backward()
    optimizer.step()
    return loss.item()


def log(line: str) -> None:
    """Print a line on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
