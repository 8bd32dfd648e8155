"""Trains a tiny Llama by an adapter, in this process or as one of several ranks:

    torchrun --nproc-per-node 2 tests/adapters/hf_runs.py TARGET FOLDER '[{"max_steps": 4}]'

Each rank does some jobs, given in JSON, and prints what it has seen as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from client import InvalidRequest, RemoteBatches
from tokenfeed.client.adapters.transformers import FeedTrainer

VOCABULARY, T, SEED, LEARNING_RATE = 1024, 32, 7, 0.5


def model_of(seed: int = 1) -> LlamaForCausalLM:
    """A new Llama, the same for each seed."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=T,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


class Seen:
    """The rows that a model was trained on, and the losses that its trainer has logged."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.rows: list[list[int]] = []
        self.keywords: set[str] = set()
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: LlamaForCausalLM, _: Any, keywords: dict[str, Any]) -> None:
        if model.training:
            self.rows += keywords["input_ids"].tolist()
            self.keywords |= set(keywords)


def arguments(folder: Path | str, **options: Any) -> dict[str, Any]:
    """Arguments of a Trainer: plain SGD, so that a loop of a few lines does the same."""
    return {
        "output_dir": str(folder),
        "logging_steps": 1,
        "max_grad_norm": 0,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "weight_decay": 0.0,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        **options,
    }


@contextmanager
def feed_at(target: str, batch_size: int = 2, **options: Any) -> Iterator[RemoteBatches]:
    dataset = None if "mixture" in options else "train"
    given = {"order": "packed", "seed": SEED, "dataset": dataset, **options}
    with RemoteBatches(target, batch_size, T, **given) as feed:
        yield feed


def fit(
    target: str,
    folder: Path | str,
    resume: bool | str | None = None,
    feed: dict[str, Any] | None = None,
    epoch: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train.  feed: arguments of the feed.  epoch: which one is trained on; None is all of them.
    options: arguments of the Trainer.
    """
    model = model_of()
    seen = Seen(model)
    with feed_at(target, **(feed or {})) as batches:
        trainer = FeedTrainer(
            model,
            TrainingArguments(**arguments(folder, **options)),
            train_dataset=batches if epoch is None else batches.epoch(epoch),
        )
        trainer.train(resume_from_checkpoint=resume)
        state = trainer.feed_state()
    logged = trainer.state.log_history
    return {
        "rows": seen.rows,
        "keywords": sorted(seen.keywords),
        "losses": [entry["loss"] for entry in logged if "loss" in entry],
        "epochs": [entry["epoch"] for entry in logged if "loss" in entry],
        "steps": trainer.state.global_step,
        "sample": state["sample"],
        "weight": float(model.lm_head.weight.detach().double().abs().sum()),
    }


def evaluated(target: str, folder: Path | str, batch_size: int, loss: str = "eval_loss") -> float:
    """The loss of a new model on all rows of an epoch."""
    with feed_at(target, batch_size) as feed:
        trainer = FeedTrainer(
            model_of(),
            TrainingArguments(**arguments(folder)),
            eval_dataset=feed.epoch(0, tail="pad"),
        )
        return float(trainer.evaluate()[loss])


class Rows(IterableDataset[dict[str, Any]]):
    """A feed as a script may wrap it.  shifted_twice: as it does if it passes y as labels."""

    def __init__(self, feed: RemoteBatches, *, shifted_twice: bool = False) -> None:
        self.feed, self.shifted_twice = feed, shifted_twice

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.feed.batches():
            if self.shifted_twice:
                yield {"input_ids": batch.x, "labels": batch.y}
            else:
                yield batch.as_kwargs("transformers")


class PlainTrainer(Trainer):  # type: ignore[misc]
    """A Trainer with a loader of its own, prepared by accelerate or not."""

    is_prepared = False

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = DataLoader(self.train_dataset, batch_size=None)
        return self.accelerator.prepare(loader) if self.is_prepared else loader


def fit_plainly(
    target: str, folder: Path | str, *, shifted_twice: bool = False, is_prepared: bool = False
) -> dict[str, Any]:
    """Train two steps without an adapter, and save the last."""
    model = model_of()
    seen = Seen(model)
    given = TrainingArguments(**arguments(folder, max_steps=2, save_strategy="steps", save_steps=2))
    with feed_at(target) as feed:
        dataset = Rows(feed, shifted_twice=shifted_twice)
        trainer = PlainTrainer(model, given, train_dataset=dataset)
        trainer.is_prepared = is_prepared
        trainer.train()
        state = feed.state_dict()
    return {"rows": seen.rows, "loss": trainer.state.log_history[0]["loss"], "state": state}


def job(target: str, folder: str, rank: int, by_rank: list[Any], **options: Any) -> Any:
    """Do one job of a rank.  by_rank: arguments of the feed that are those of one rank."""
    if "is_prepared" in options:
        return fit_plainly(target, folder, **options)
    if "batch_size" in options:
        return evaluated(target, folder, **options)
    options["feed"] = {**options.get("feed", {}), **by_rank[rank]}
    try:
        return fit(target, options.pop("folder", folder), **options)
    except InvalidRequest as error:  # on all ranks
        return str(error)


if __name__ == "__main__":
    target, folder, jobs = sys.argv[1:]
    rank = int(os.environ["RANK"])
    found = [
        job(target, f"{folder}/{number}", rank, **{"by_rank": [{}, {}], **options})
        for number, options in enumerate(json.loads(jobs))
    ]
    print(f"{json.dumps([rank, found])}\n", end="", flush=True)
