"""Trains torchtitan's debug model on a CPU, saves dataloaders on one and two ranks, and writes what
was read into FOLDER.

    python -m tests.adapters.training.torchtitan FOLDER TARGET
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import torch.nn.attention.flex_attention

# torchtitan 0.3 looks for a GPU when it is imported, and asks it what torch.cpu does not know.
torch._utils._get_available_device_type = lambda: "cpu"
for name, value in {
    "empty_cache": None,
    "get_device_name": "cpu",
    "get_device_properties": SimpleNamespace(total_memory=1 << 30),
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "set_device": None,
}.items():
    setattr(torch.cpu, name, lambda *_, value=value: value)
# Flex attention runs on a CPU if it is not compiled; backward too, unless this forbids it.
torch.nn.attention.flex_attention._validate_device = lambda *_: None

import torchtitan.distributed.utils
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_debugmodel

# It sets timeouts in a way that this release of torch does not have.
torchtitan.distributed.utils.set_pg_timeouts = lambda **_: None

from tests.adapters.training.ranks import run_on_ranks
from tokenfeed.client.adapters.torchtitan import FeedDataLoader

T, BATCH_SIZE = 16, 2
OPTIONS = {"order": "packed", "seed": 3}


class NoTokenizer(BaseTokenizer):
    """Of a corpus of tokens, no text is encoded."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any) -> list[int]:
        return []

    def decode(self, *_: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return 2048


def config_of(folder: Path, steps: int, target: str) -> Any:
    """Return the configuration of a run of this many steps, with documents in packed rows."""
    config = llama3_debugmodel()
    config.model_spec = model_registry("debugmodel")
    config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.tokenizer = NoTokenizer.Config()
    config.training.seq_len = T
    config.training.local_batch_size = BATCH_SIZE
    config.training.steps = steps
    config.training.disable_cuda_graphs = True
    # In bfloat16, a matrix of another shape may round logits otherwise, and that says nothing.
    config.training.mixed_precision_param = "float32"
    config.checkpoint = CheckpointManager.Config(
        enable=True, interval=1000, last_save_model_only=False
    )
    config.dump_folder = str(folder)
    config.validator.enable = False
    config.dataloader = FeedDataLoader.Config(target=target, options=OPTIONS)
    return config


def train(folder: Path, target: str, name: str, steps: int) -> None:
    """Train up to a step, from the last checkpoint on; write rows, losses, and those of a plain
    forward of the same weights.
    """
    trainer = config_of(folder, steps, target).build()
    rows, losses, plain = [], [], []
    step = trainer.forward_backward_step

    def recorded(*, input_dict: Any, labels: torch.Tensor, **counts: Any) -> torch.Tensor:
        rows.append([input_dict["input"].tolist(), labels.tolist()])
        logits = forward(trainer.model_parts[0], input_dict["input"], input_dict["positions"])
        expected = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss: torch.Tensor = step(input_dict=input_dict, labels=labels, **counts)
        plain.append(expected.item())
        losses.append(loss.item())
        return loss

    trainer.forward_backward_step = recorded
    trainer.train()
    isolated = isolation_error(trainer.model_parts[0], target)
    found = {"rows": rows, "losses": losses, "plain": plain, "isolation_error": isolated}
    (folder / f"{name}.json").write_text(json.dumps(found))
    trainer.close()
    torch.distributed.destroy_process_group()


@torch.no_grad()
def forward(model: Any, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the logits, float[B, T, vocabulary]."""
    masks = model.get_attention_masks(positions=positions)
    logits: torch.Tensor = model(x, positions=positions, attention_masks=masks)
    return logits


def isolation_error(model: Any, target: str) -> float:
    """Return by how much logits of documents in a row differ from those of the documents alone."""
    loader = FeedDataLoader.Config(target=target, options=OPTIONS).build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=T, local_batch_size=1
    )
    row, _ = next(each for each in loader if int((each[0]["positions"] == 0).sum()) > 1)
    x, positions = row["input"], row["positions"]
    whole = forward(model, x, positions)
    bounds = [*torch.nonzero(positions[0] == 0).flatten().tolist(), T]
    errors = [
        (whole[:, a:b] - forward(model, x[:, a:b], positions[:, a:b])).abs().max().item()
        for a, b in pairwise(bounds)
    ]
    loader.close()
    return max(errors)


def save_or_load(folder: Path, target: str, name: str, ranks: int, loaded: str | None) -> None:
    """Load a checkpoint of dataloaders, read two batches, and save another one."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    loader = FeedDataLoader.Config(target=target, options=OPTIONS).build(
        dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=T, local_batch_size=BATCH_SIZE
    )
    if loaded is not None:
        dcp.load({"dataloader": loader}, checkpoint_id=str(folder / loaded))
    batches = iter(loader)
    rows = [[arrays["input"].tolist(), y.tolist()] for arrays, y in (next(batches), next(batches))]
    dcp.save({"dataloader": loader}, checkpoint_id=str(folder / name))
    (folder / f"{name}-{rank}.json").write_text(json.dumps(rows))
    loader.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), sys.argv[2]
    run_on_ranks(1, partial(train, folder, target, "first", 3))
    run_on_ranks(1, partial(train, folder, target, "second", 5))
    for name, ranks, loaded in [("one", 1, None), ("two", 2, "one"), ("again", 1, "two")]:
        run_on_ranks(ranks, partial(save_or_load, folder, target, name, ranks, loaded))
