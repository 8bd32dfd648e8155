"""DistributedDataParallel that stops, and resumes on another number of ranks.

    python -m torch.distributed.run --standalone --nproc-per-node 3 examples/ddp.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp.py

The feed takes its rank from torch.distributed. Its state is in the checkpoint, next to the model's,
and is independent of ranks: every rank loads the same one. The second run resumes at exactly the
sample at which the first one stopped, from another server process. Runs on the CPU; with GPUs pass
`device=f"cuda:{local_rank}"` to the feed.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from serving import parser, server_at
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tokenfeed import RemoteBatches

BATCH_SIZE, CONTEXT_LENGTH = 8, 64


def main() -> int:
    """Train some steps from the newest checkpoint on.  Returns: 0."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--folder",
        type=Path,
        default=Path("ddp-checkpoints"),
        help="of the checkpoints (default: %(default)s)",
    )
    arguments.add_argument(
        "--steps", type=int, default=20, help="steps of this run (default: %(default)s)"
    )
    arguments.add_argument(
        "--save-as",
        choices=["torch", "distributed"],
        default="torch",
        help="checkpoint format (default: %(default)s)",
    )
    options = arguments.parse_args()
    if "RANK" not in os.environ:
        arguments.error("no RANK in the environment; run it with python -m torch.distributed.run")
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group("gloo")
    train(options)
    # After the model: one that outlives the process group can hang the process (torch 2.13).
    dist.destroy_process_group()
    return 0


def train(options: Namespace) -> None:
    """Train from the newest checkpoint on, and save another one."""
    training = Training(options.vocab_size)
    with (
        server_at(options.target) as address,
        RemoteBatches(
            address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            dataset=options.dataset,
            order="shuffled",
            seed=1337,
        ) as feed,
    ):
        load_newest(options.folder, training, feed)
        first_sample = feed.position.samples
        losses = [training.step(x, y) for x, y in islice(feed, options.steps)]
        save(options.folder, options.save_as, training, feed)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks, {BATCH_SIZE} x {CONTEXT_LENGTH} each a step")
            print(f"samples {first_sample} to {feed.position.samples} in {len(losses)} steps")
            print(f"loss of rank 0: {losses[0]:.3f} -> {losses[-1]:.3f}")
            print(feed.stats())


class Training:
    """A tiny model and its optimizer; a Stateful, so torch.distributed.checkpoint can save it."""

    def __init__(self, vocab_size: int) -> None:
        """Create the weights, the same on every rank."""
        model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, vocab_size))
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)

    def step(self, x: Tensor, y: Tensor) -> float:
        """Train on a batch, together with the other ranks.  Returns: the loss of this rank."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Return weights and moments under names that do not depend on ranks."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def save(folder: Path, save_as: str, training: Training, feed: RemoteBatches) -> None:
    """Save model and feed in one checkpoint, named by the position in the stream."""
    path = folder / f"{feed.position.samples:012}"
    if save_as == "distributed":
        # The feed is a Stateful: it has state_dict and load_state_dict.
        dcp.save({"training": training, "feed": feed}, checkpoint_id=path)
        return
    state = {"training": training.state_dict(), "feed": feed.state_dict()}
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: the next run loads every checkpoint that it finds.
        torch.save(state, f"{path}.partial")
        os.replace(f"{path}.partial", f"{path}.pt")


def load_newest(folder: Path, training: Training, feed: RemoteBatches) -> None:
    """Load the checkpoint with the largest position, if there is one; every rank loads it."""
    # The .metadata of a distributed checkpoint is written last.
    complete = [*folder.glob("*.pt"), *(path.parent for path in folder.glob("*/.metadata"))]
    if not complete:
        return
    newest = max(complete, key=lambda path: path.stem)
    if newest.is_dir():
        dcp.load({"training": training, "feed": feed}, checkpoint_id=newest)
        return
    state = torch.load(newest, weights_only=True)
    training.load_state_dict(state["training"])
    feed.load_state_dict(state["feed"])


if __name__ == "__main__":
    sys.exit(main())
