"""Lightning's Trainer on a feed, which stops and resumes. Run by hand, not by the tests.

python examples/lightning_trainer.py
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from serving import parser, server_at
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tokenfeed import RemoteBatches

try:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tokenfeed.client.adapters.lightning import FeedData
except ModuleNotFoundError:
    sys.exit("this example needs Lightning: pip install lightning")

BATCH_SIZE, CONTEXT_LENGTH = 16, 128
SAVE_EVERY, FIRST_STEPS, ALL_STEPS = 10, 25, 40


def main() -> int:
    """Train, stop after a checkpoint, resume from it.  Returns: 0, or 1 for wrong samples."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    with server_at(options.target) as address, tempfile.TemporaryDirectory() as folder:
        first = fit(options, address, folder, FIRST_STEPS, None)
        saved = FIRST_STEPS // SAVE_EVERY * SAVE_EVERY
        checkpoint = Path(folder) / f"step={saved}.ckpt"
        second = fit(options, address, folder, ALL_STEPS, str(checkpoint))
    print(f"trained on samples {first[0]} to {first[1]}, and stopped")
    print(f"resumed from {checkpoint.name}: samples {second[0]} to {second[1]}")
    steps = 0, FIRST_STEPS, saved, ALL_STEPS
    return int((*first, *second) != tuple(step * BATCH_SIZE for step in steps))


def fit(
    options: Any, address: str, folder: str, steps: int, checkpoint: str | None
) -> tuple[int, int]:
    """Train up to a step.  Returns: the first sample trained on, and the next one."""
    feed = partial(
        RemoteBatches,
        address,
        BATCH_SIZE,
        CONTEXT_LENGTH,
        dataset=options.dataset,
        order="shuffled",
        seed=1337,
    )
    data = FeedData(feed)
    saving = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=SAVE_EVERY)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(options.vocab_size), datamodule=data, ckpt_path=checkpoint)
    assert data.feed is not None
    print(data.feed.stats())
    run = data.feed.history()[-1]
    batches = data.feed.stats().batches
    return run["end_sample"] - batches * BATCH_SIZE, run["end_sample"]


class Model(lightning.LightningModule):
    """A model that is small enough to train in seconds."""

    def __init__(self, vocab_size: int) -> None:
        """Create the weights."""
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, vocab_size))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = cross_entropy(self.layers(x).flatten(0, 1), y.flatten())
        if (batch_index + 1) % SAVE_EVERY == 0:
            print(f"step {self.global_step + 1}: loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-2)


if __name__ == "__main__":
    sys.exit(main())
