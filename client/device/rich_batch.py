"""RichBatch: a batch on a device that unpacks as x and y, and computes what else a trainer takes.

Arrays are made from offsets in host memory and copied to the device on the consumer's current
stream, through pinned memory. The host never waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from tokenfeed.errors import InvalidRequest

from .numpy_batch import BatchAttributes


class RichBatch(BatchAttributes[torch.Tensor]):
    """A batch of tensors on one device.

        x, y = batch
        loss = model(x, y, positions=batch.positions)

    x, y: [B, T], as a feed yields them; y is int64. All other tensors are on the device of x;
    tokens and positions are int64.
    """

    def _delivered(self, array: npt.NDArray[Any]) -> torch.Tensor:
        device = self.x.device
        tensor = torch.from_numpy(array)  # on the CPU it shares the array's memory
        if device.type != "cuda":
            return tensor.to(device)
        if torch.cuda.is_current_stream_capturing():  # it would replay this batch for ever
            raise InvalidRequest(
                "batch", "cannot be read in a CUDA graph; access its attributes before the capture"
            )
        # torch keeps the pinned memory until the copy is done, and then reuses it.
        return tensor.pin_memory().to(device, non_blocking=True)

    def _whole_rows(self) -> torch.Tensor:
        batch_size, context_length = self.x.shape
        tokens = torch.empty(
            (batch_size, context_length + 1), dtype=torch.int64, device=self.x.device
        )
        tokens[:, :-1] = self.x
        tokens[:, -1] = self._delivered(self._host.last_tokens.copy())
        return tokens
