"""What the tests of the adapter for Lightning train, with Lightning and in a plain loop; and, run
as a script, in several processes: python lightning_model.py OUT JSON
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client import RemoteBatches
from tokenfeed.client.adapters.lightning import FeedData, log_loss

B, T, WINDOWS, SEED = 4, 8, 26, 5
"""An epoch has 26 rows, so 6 batches of one rank, or 3 of two; 2 rows are left."""
VOCABULARY = WINDOWS * T + 1


class Model(lightning.LightningModule):
    """Embeddings and logits, by SGD with momentum: its weights tell in which order it learned.

    seen: the first tokens of the rows of each batch, by which all rows differ.
    """

    def __init__(self, *, helped: bool = True) -> None:
        """helped: whether the loss of a validation is logged by the adapter's log_loss."""
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
        self.seen: list[list[int]] = []
        self.losses: list[float] = []
        self.validated: list[float] = []
        self.helped = helped

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        x, y = batch
        self.seen.append(x[:, 0].tolist())
        loss = cross_entropy(self.layers(x).flatten(0, 1), y.flatten())
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        x, y = batch
        losses = cross_entropy(self.layers(x).flatten(0, 1), y.flatten(), reduction="none")
        if self.helped:
            log_loss(self, "loss", losses, y)
        else:
            loss = cross_entropy(self.layers(x).flatten(0, 1), y.flatten())
            self.log("loss", loss, sync_dist=True)

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.3, momentum=0.9)


def weights_of(model: Model) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def plain_loop(
    steps: list[list[tuple[Tensor, Tensor]]], accumulate: int = 1
) -> tuple[Tensor, list[float]]:
    """Train without Lightning.  steps: the batches of each.  accumulate: what Lightning divides a
    loss by, also in a last step of fewer batches.  Returns: weights, and losses.
    """
    model, losses = Model(), []
    optimizer = model.configure_optimizers()
    for batches in steps:
        optimizer.zero_grad()
        for x, y in batches:
            loss = cross_entropy(model.layers(x).flatten(0, 1), y.flatten())
            losses.append(loss.item())
            (loss / accumulate).backward()
        optimizer.step()
    return weights_of(model), losses


def make(target: str, **options: Any) -> partial[RemoteBatches]:
    return partial(RemoteBatches, target, B, **{"context_length": T, "seed": SEED, **options})


def trainer_of(**options: Any) -> lightning.Trainer:
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    return lightning.Trainer(accelerator="cpu", **quiet | {"devices": 1} | options)


def main(out: str, given: dict[str, Any]) -> None:
    """Train in several processes; each writes what it saw to OUT-RANK."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    target, checkpoint = given["target"], given.get("checkpoint")
    options = dict(given["trainer"])
    if "save_step_4" in given:
        saving = ModelCheckpoint(
            given["save_step_4"], "{step}", every_n_train_steps=4, save_top_k=-1
        )
        options |= {"callbacks": [saving], "enable_checkpointing": True}
    trainer = trainer_of(strategy="ddp", **options)
    ends = given.get("num_batches")
    options = {} if ends is None else {"num_batches": ends[trainer.global_rank]}
    validation = [make(given["validation"], order="sequential")] if "validation" in given else []
    model = Model(helped=given.get("helped", True))
    data = FeedData(make(target, **options), validation)
    error = ""
    try:
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    except Exception as raised:  # noqa: BLE001 - the test looks at it
        error = repr(raised)
    seen = {
        "seen": model.seen,
        "validated": model.validated,
        "weights": weights_of(model).tolist(),
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "error": error,
    }
    Path(f"{out}-{trainer.global_rank}").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
