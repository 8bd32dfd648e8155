"""What Megatron-LM and Megatron Bridge have in common in a batch. Imports neither."""

from __future__ import annotations

import torch

from ..batches.remote import RichBatch


def lm_arrays(batch: RichBatch, *, restarts: bool) -> dict[str, torch.Tensor]:
    """Return tokens, labels and position_ids, int64[B, T], and loss_mask, float32[B, T]; labels are
    0 where the mask is 0.

    restarts: says whether positions are those within documents, instead of those within rows.
    Raises: InvalidRequest if documents are needed and not known.
    """
    x, y = batch
    positions = batch.positions if restarts else torch.arange(x.shape[1]).repeat(x.shape[0], 1)
    return {
        "tokens": x,
        "labels": y.clamp(min=0),  # an index of logits, also where no loss is taken
        "loss_mask": batch.loss_mask.float(),
        "position_ids": positions,
    }
