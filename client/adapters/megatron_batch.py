"""The arrays of a batch that both Megatron-LM and Megatron Bridge take. This module imports
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RichBatch

_OWN = (
    *("batch_size", "context_length", "device", "rank", "world_size", "group"),
    *("start_sample", "start_step"),
)


def require_options(*options: Mapping[str, Any], others: tuple[str, ...] = ()) -> None:
    """Raise InvalidRequest for arguments of feeds that Megatron decides on, and for their end: only
    one rank of a tensor-parallel group would see it, and the others would wait.

    options: are those of each split.  others: names what else is allowed.
    """
    for given in options:
        if "num_batches" in given:
            raise InvalidRequest("num_batches", "is train_iters or eval_iters of Megatron; omit it")
        for name in _OWN:
            if name in given and name not in others:
                raise InvalidRequest(name, "is set by Megatron; omit it")


def require_endless(feed: RemoteBatches) -> RemoteBatches:
    """Return a feed.  Raises: InvalidRequest if it is of a mixture that ends."""
    if feed._stream.definition.max_epochs:
        problem = "would end the mixture on one rank of a tensor-parallel group, and the others "
        raise InvalidRequest(
            "max_epochs", f"{problem}would wait; omit it, train_iters ends the run"
        )
    return feed


def lm_arrays(batch: RichBatch, *, restarts: bool) -> dict[str, torch.Tensor]:
    """Return tokens, labels and position_ids, int64[B, T], and loss_mask, float32[B, T]; labels are
    0 where the mask is 0.

    restarts: says whether position_ids count within documents instead of within rows. Raises:
    InvalidRequest if they do, and it is not known of a dataset where its documents begin.
    """
    x, y = batch
    positions = batch.positions if restarts else torch.arange(x.shape[1]).repeat(x.shape[0], 1)
    return {
        "tokens": x,
        "labels": y.clamp(min=0),  # an index of logits, also where no loss is taken
        "loss_mask": batch.loss_mask.float(),
        "position_ids": positions,
    }
