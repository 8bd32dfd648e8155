"""Lightning's Trainer, with the feed's state in its checkpoint. Run by hand, not by the tests.

    python examples/lightning_trainer.py

Lightning fetches one batch ahead of the one that it trains on, to detect the last one. So the
feed's own state would be one batch ahead. Here each batch carries the state after it, and the
checkpoint contains that of the last batch that was trained on.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from serving import parser, server_at
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from tokenfeed import RemoteBatches

try:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
except ModuleNotFoundError:
    sys.exit("this example needs Lightning: pip install lightning")

BATCH_SIZE, CONTEXT_LENGTH = 16, 128
SAVE_EVERY, FIRST_STEPS, ALL_STEPS = 10, 25, 40


def main() -> int:
    """Train, stop after a checkpoint, resume from it.  Returns: 0, or 1 for wrong samples."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    # Lightning recommends worker processes, which a feed does not need.
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    with server_at(options.target) as address, tempfile.TemporaryDirectory() as folder:
        first = fit(options, address, folder, FIRST_STEPS, None)
        checkpoint = Path(folder) / f"step={FIRST_STEPS // SAVE_EVERY * SAVE_EVERY}.ckpt"
        second = fit(options, address, folder, ALL_STEPS, str(checkpoint))
    print(f"trained on samples {first[0]} to {first[1]}, and stopped")
    print(f"resumed from {checkpoint.name}: samples {second[0]} to {second[1]}")
    steps_saved = FIRST_STEPS // SAVE_EVERY * SAVE_EVERY
    ends = (FIRST_STEPS * BATCH_SIZE, ALL_STEPS * BATCH_SIZE)
    return int((second[0], first[1], second[1]) != (steps_saved * BATCH_SIZE, *ends))


def fit(
    options: Any, address: str, folder: str, steps: int, checkpoint: str | None
) -> tuple[int, int]:
    """Train up to a step.  Returns: the first sample trained on, and the next one."""
    data = FeedData(address, options.dataset)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[
            ModelCheckpoint(
                folder, "{step}", save_top_k=-1, every_n_train_steps=SAVE_EVERY, save_last=False
            )
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(options.vocab_size), datamodule=data, ckpt_path=checkpoint)
    print(data.feed.stats())
    data.feed.close()
    return data.first_sample, data.trained["sample"]


class FeedData(lightning.LightningDataModule):
    """The feed, and the state after the last batch that was trained on."""

    def __init__(self, address: str, dataset: str | None) -> None:
        """Remember the data.  address: of the server."""
        super().__init__()
        self.address, self.dataset = address, dataset
        self.trained: dict[str, Any] | None = None

    def train_dataloader(self) -> DataLoader:
        """Return the batches from the current state on. Called after load_state_dict, when the
        ranks of torch.distributed are known.
        """
        self.feed = RemoteBatches(
            self.address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            dataset=self.dataset,
            order="shuffled",
            seed=1337,
        )
        if self.trained is not None:
            self.feed.load_state_dict(self.trained)
        self.first_sample = self.feed.position.samples
        return DataLoader(WithState(self.feed), batch_size=None)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> tuple[Tensor, Tensor]:
        """Remove the state from the batch that is trained on now, and keep it."""
        x, y, self.trained = batch
        return x, y

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was trained on."""
        return {} if self.trained is None else {"feed": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember where to resume."""
        self.trained = state["feed"]


class WithState(IterableDataset):
    """Batches of a feed, each with the feed's state after it."""

    def __init__(self, feed: RemoteBatches) -> None:
        """Wrap a feed."""
        self.feed = feed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Yield (x, y, state)."""
        for x, y in self.feed:
            yield x, y, self.feed.state_dict()


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
