"""Runs of OLMo-core's Trainer on a tiny llama; each writes what it trained on.

python -m tests.adapters.training.olmo_core FOLDER '[{"name": ..., "ranks": 2, ...}, ...]'
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import (
    Duration,
    TrainerConfig,
    prepare_training_environment,
    teardown_training_environment,
)
from olmo_core.train.callbacks import BatchSizeSchedulerCallback, Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from olmo_core.utils import seed_all

from tests.adapters.training.ranks import run_on_ranks
from tokenfeed.client.adapters.olmo_core import FeedDataLoader

T = 16
# With the usual eps, the first steps would be the signs of gradients, and so the noise of rounding.
OPTIMIZER = {"lr": 0.3, "eps": 1.0, "weight_decay": 0.0}


class Recorder(Callback):
    """Keeps the rows and the loss of each step."""

    def pre_train(self) -> None:
        self.rows: list[torch.Tensor] = []
        self.losses: list[float] = []

    def pre_step(self, batch: dict[str, Any]) -> None:
        x, y = batch["input_ids"], batch["labels"]
        assert (x[:, 1:] == y[:, :-1]).all()
        self.rows.append(torch.cat([x, y[:, -1:]], dim=1))

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if "train/CE loss" in metrics:
            self.losses.append(float(metrics["train/CE loss"]))


def run(
    folder: Path,
    name: str,
    rows: int,
    duration: dict[str, Any],
    *,
    resumed: str | None = None,
    batch_sizes: dict[str, int] | None = None,
    **feed: Any,
) -> None:
    """Train, and write what rank R did into FOLDER/NAME-R.json.

    rows: of a batch on all ranks.  resumed: the run whose last checkpoint is loaded.  batch_sizes:
    rows of a batch from a step on.  feed: arguments of the feed.
    """
    seed_all(7)
    config = TransformerConfig.llama_like(vocab_size=512, d_model=32, n_layers=2, n_heads=2)
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=2 * T,
        max_sequence_length=T,
        optim=AdamWConfig(**OPTIMIZER),
        dp_config=TransformerDataParallelConfig(name="ddp"),
    ).build(config.build(init_device="cpu"))
    plain = config.build(init_device="cpu")
    plain.load_state_dict(module.model.state_dict())
    loader = FeedDataLoader(
        module, context_length=T, global_batch_size=rows * T, work_dir=str(folder), **feed
    )
    callbacks: dict[str, Callback] = {
        "recorder": Recorder(),
        "checkpointer": CheckpointerCallback(
            save_interval=10_000,
            save_async=False,
            # It would make an empty step of AdamW, which a plain loop does not make.
            pre_train_checkpoint=False,
        ),
    }
    if batch_sizes:
        callbacks["batch_size"] = BatchSizeSchedulerCallback(
            batch_sizes=[rows * T for rows in batch_sizes.values()],
            schedule=[Duration.steps(int(step)) for step in batch_sizes],
        )
    trainer = TrainerConfig(
        save_folder=str(folder / name),
        load_path=None if resumed is None else str(folder / resumed),
        metrics_collect_interval=1,
        max_duration=Duration(**duration),
        device="cpu",
        callbacks=callbacks,
    ).build(module, loader)
    trainer.fit()
    recorder = trainer.callbacks["recorder"]
    found = {
        "rows": [each.tolist() for each in recorder.rows],
        "losses": recorder.losses,
        "plain_losses": plain_losses(plain, recorder.rows),
        "step": trainer.global_step,
        "tokens": trainer.global_train_tokens_seen,
        "total_batches": loader.total_batches,
        "max_steps": trainer.max_steps,
    }
    rank = torch.distributed.get_rank()
    (folder / f"{name}-{rank}.json").write_text(json.dumps(found))
    loader.feed.close()


def plain_losses(model: Any, batches: list[torch.Tensor]) -> list[float]:
    """Train the same model by a loop of torch alone.  Returns: the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses = []
    for rows in batches:
        logits = model(rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_rank(folder: Path, options: dict[str, Any]) -> None:
    """Run what each rank runs."""
    prepare_training_environment(backend="gloo", shared_filesystem=True)
    run(folder, **options)
    teardown_training_environment()


if __name__ == "__main__":
    for options in json.loads(sys.argv[2]):
        run_on_ranks(options.pop("ranks"), partial(on_rank, Path(sys.argv[1]), options))
