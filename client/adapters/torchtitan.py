"""A dataloader of torchtitan, by the contract that the installed release has.

    def llama3_on_a_feed() -> Trainer.Config:
        config = llama3_debugmodel()
        options = {"order": "shuffled", "seed": 1337}
        config.dataloader = FeedDataLoader.Config(target="host:50051", options=options)
        return config

torchtitan 0.3 takes rows, [B, T]. Later it takes one flat sequence of all rows, then the number of
targets too, then all of this as a dataclass. The state is the same on all ranks, so that a
checkpoint resumes at another data-parallel degree.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Any

import torch
import tyro

try:
    from torchtitan.components.data import collators
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:  # torchtitan 0.3
    from torchtitan.components.dataloader import BaseDataLoader

    collators = None
try:
    from torchtitan.components.data.types import TokenizedTrainingMicrobatch
except ImportError:
    TokenizedTrainingMicrobatch = None

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RichBatch
from ..transport.addresses import Targets

_COUNTS_TARGETS = collators is not None and "num_valid_tokens" in inspect.getsource(collators)
"""Whether the trainer takes the number of targets out of the dict; else the model would get it."""


class FeedDataLoader(BaseDataLoader):  # type: ignore[misc]
    """A feed as the dataloader of a Trainer; torchtitan builds it from its Config."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What is read.

        target: means what it does for RemoteBatches.  options: other arguments of RemoteBatches,
        without device, rank, world_size and group.  documents: says whether attention stays within
        documents, where the datasets know them; else it stays within rows.
        """

        target: Annotated[Targets, tyro.conf.Suppress]
        options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        documents: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **sizes: Any) -> None:
        """Describe the batches; does no I/O.

        config, dp_world_size, dp_rank: as torchtitan passes them.  sizes: seq_len and
        local_batch_size; or max_context_length, and the tokens of a batch of a rank.
        Raises: InvalidRequest if these tokens are no whole rows; as for RemoteBatches.
        """
        name = next((name for name in sizes if name.startswith("num_tokens_per_")), None)
        if name is None:
            context_length, rows = sizes["seq_len"], sizes["local_batch_size"]
        else:
            context_length = sizes["max_context_length"]
            rows, rest = divmod(sizes[name], context_length)
            if rest or not rows:
                problem = f"{sizes[name]} is not a multiple of max_context_length {context_length}"
                raise InvalidRequest(name, problem)
        self._is_flat = name is not None
        self._documents = config.documents
        self._masks_documents = _masks_documents()
        self.max_num_documents = getattr(config, "max_num_documents", None)
        self.feed = RemoteBatches(
            config.target,
            rows,
            context_length,
            rank=dp_rank,
            world_size=dp_world_size,
            **config.options,
        )
        """The RemoteBatches that is read: for its history and statistics."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over batches from the present position on.

        Raises: InvalidRequest if documents or rows follow each other in a sequence, and the
        attention of the model would not keep them apart; as for iterating a feed.
        """
        return map(self._batch, self.feed.batches())

    def _batch(self, batch: RichBatch) -> Any:
        positions = torch.arange(batch.x.shape[1]).expand(batch.x.shape)
        if self._documents and batch.documents is not None:
            positions = batch.positions
        arrays = {"input": batch.x, "positions": positions, "labels": batch.y}
        padding_mask = batch.padding_mask
        if self._is_flat:
            arrays = {name: each.flatten() for name, each in arrays.items()}
            padding_mask = padding_mask.flatten()
        if not self._masks_documents:
            _require_one_document(arrays["positions"], padding_mask)
        if TokenizedTrainingMicrobatch is not None:
            count = batch.num_valid_targets
            return TokenizedTrainingMicrobatch(
                **arrays, padding_mask=padding_mask, num_valid_tokens=count
            )
        labels = arrays.pop("labels")
        if _COUNTS_TARGETS:
            return {**arrays, "num_valid_tokens": batch.num_valid_targets}, labels
        return arrays, labels

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, the same on all ranks, as plain values."""
        return self.feed.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state of any rank; without one, as in a checkpoint of weights alone, do
        nothing.  Raises: as `load_state_dict` of RemoteBatches.
        """
        if state_dict:
            self.feed.load_state_dict(state_dict)

    def close(self) -> None:
        """End threads and connection."""
        self.feed.close()


def _require_one_document(positions: torch.Tensor, padding_mask: torch.Tensor) -> None:
    """Raise InvalidRequest if a sequence has more than one document, or more than one row.

    positions, padding_mask: [B, T] or flat.
    """
    if bool(((positions == 0) & ~padding_mask)[..., 1:].any()):
        raise InvalidRequest(
            "documents",
            "or rows follow each other in a sequence, and ScaledDotProductAttention of this model "
            "attends across them, with context parallelism or without; choose flex or varlen "
            "attention. For windows, documents=False gives up documents, and a flat batch needs "
            "to be one row",
        )


def _masks_documents() -> bool:
    """Whether attention of the model that is trained keeps documents of a sequence apart.

    torchtitan says nothing of the model to a dataloader, so the stack frames of the caller are
    inspected. Without a Trainer nothing is known, and True is returned.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torchtitan.trainer":
            config = getattr(frame.f_locals.get("self"), "config", None)
            # Flex and varlen attention mask by positions. With context parallelism torchtitan
            # makes the mask of the whole sequence, and then splits it.
            return "ScaledDotProduct" not in repr(getattr(config, "model_spec", None))
        frame = frame.f_back
    return True
