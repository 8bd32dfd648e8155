"""The arrays of a batch that both Megatron-LM and Megatron Bridge take. This module imports
neither.
"""

from __future__ import annotations

import torch

from ..batches.remote import RichBatch


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
