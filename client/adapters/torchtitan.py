"""An adapter for torchtitan: a dataloader that follows the interface of the installed torchtitan
release.

    def llama3_on_a_feed() -> Trainer.Config:
        config = llama3_debugmodel()
        options = {"order": "shuffled", "seed": 1337}
        config.dataloader = FeedDataLoader.Config(target="host:50051", options=options)
        return config

torchtitan 0.3 takes rows, [B, T]. Later releases take one flat sequence of all rows, then also the
number of targets, and finally all of this as a dataclass. Flex and varlen attention keep documents
apart by positions, and torchtitan builds its language models only with these two. The state is the
same on all ranks, so that a run can resume from a checkpoint with another data-parallel degree.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    """A feed as the dataloader of a Trainer; torchtitan builds it from the dataloader's Config."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The arguments of the feed.

        target: means what it does for RemoteBatches.
        options: has other arguments of RemoteBatches, except device, rank, world_size and group.
        documents: says whether attention stays within documents, if it is known where these begin;
        otherwise attention stays within rows.
        """

        target: Annotated[Targets, tyro.conf.Suppress]
        options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        documents: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **sizes: Any) -> None:
        """Describe the batches; does no I/O.

        config, dp_world_size, dp_rank: are the values that torchtitan passes. sizes: has seq_len
        and local_batch_size; or max_context_length, and the number of tokens in a rank's batch.
        Raises: InvalidRequest if this number of tokens is not a whole number of rows; and the
        errors of RemoteBatches.
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
        """Return an iterator over the batches from the current position on. Raises: as for
        iterating a feed.
        """
        return map(self._batch, self.feed.batches())

    def _batch(self, batch: RichBatch) -> Any:
        positions = torch.arange(batch.x.shape[1]).expand(batch.x.shape)
        if self._documents and batch.documents is not None:
            positions = batch.positions
        arrays = {"input": batch.x, "positions": positions, "labels": batch.y}
        if TokenizedTrainingMicrobatch is not None:
            arrays["padding_mask"] = batch.padding_mask
        if self._is_flat:
            arrays = {name: each.flatten() for name, each in arrays.items()}
        if TokenizedTrainingMicrobatch is not None:
            count = batch.num_valid_targets
            return TokenizedTrainingMicrobatch(**arrays, num_valid_tokens=count)
        labels = arrays.pop("labels")
        if _COUNTS_TARGETS:
            return {**arrays, "num_valid_tokens": batch.num_valid_targets}, labels
        return arrays, labels

    def state_dict(self) -> dict[str, Any]:
        """Return, as plain values, the position after the batch that the loader last handed out; it
        is the same on all ranks.
        """
        return self.feed.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of any rank; if the state is empty, as in a checkpoint of weights
        alone, do nothing.
        Raises: the errors of `load_state_dict` of RemoteBatches.
        """
        if state_dict:
            self.feed.load_state_dict(state_dict)

    def close(self) -> None:
        """End the threads and the connection of the feed."""
        self.feed.close()
