"""Rows of a source -> (x, y) on a device: one class per kind of device. The copies to a CUDA device
are in pinned_ring.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress

import torch

from tokenfeed.errors import InvalidRequest

from .host_transfer import HostTransfer, Transfer, require_tokens_fit
from .numpy_batch import HostPart, Note
from .pinned_ring import CudaCopyEngine, PinnedRing, cuda_copy_engine
from .row_source import RowSource
from .target_mask import masks_of
from .widening import WIDE_NUMPY, Batch, narrow_dtype


class CpuTransfer:
    """To the CPU: as for NumPy. An array turned into a tensor is faster than the reverse: this
    saves a tenth of the cost of a batch of 32 x 2048.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        x_dtype: torch.dtype,
        masks: Collection[int] = (),
        *,
        note: Note | None = None,
    ) -> None:
        """shape: (batch_size, context_length).  masks: kinds of planes that mask targets.  note:
        sets `noted`.
        """
        y_dtype = WIDE_NUMPY[torch.int64]
        self._host = HostTransfer(shape, WIDE_NUMPY[x_dtype], y_dtype, masks, note=note)

    @property
    def noted(self) -> HostPart | None:
        """What the host knows of the batch that was returned last."""
        return self._host.noted

    def next(self, rows: RowSource, out: Batch | None) -> Batch | None:
        """Return the next batch in host memory."""
        if out is not None:
            return out if self._host.next(rows, (out[0].numpy(), out[1].numpy())) else None
        pair = self._host.next(rows, None)
        return pair and (torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))


class DirectTransfer(CpuTransfer):
    """To a device without a ring, such as MPS: widened on the host, since few devices but CUDA's
    convert unsigned tensors, and copied.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        x_dtype: torch.dtype,
        device: torch.device,
        masks: Collection[int] = (),
        *,
        note: Note | None = None,
    ) -> None:
        """device: where batches arrive.  The others: as for CpuTransfer."""
        super().__init__(shape, x_dtype, masks, note=note)
        self._device = device

    def next(self, rows: RowSource, out: Batch | None) -> Batch | None:
        """Return the next batch on the device."""
        if out is None:
            batch = super().next(rows, None)
            return batch and (batch[0].to(self._device), batch[1].to(self._device))
        x, y = (torch.empty_like(tensor, device="cpu") for tensor in out)
        if super().next(rows, (x, y)) is None:
            return None
        out[0].copy_(x)
        out[1].copy_(y)
        return out


class PinnedTransfer:
    """To a CUDA device, through a ring: each call also starts the transfer of the next batch."""

    def __init__(
        self,
        shape: tuple[int, int],
        x_dtype: torch.dtype,
        device: torch.device,
        engine: CudaCopyEngine,
        masks: Collection[int] = (),
        *,
        note: Note | None = None,
    ) -> None:
        """shape: (batch_size, context_length).  engine: of this device.  masks: kinds of planes
        that mask targets.  note: sets `noted`.
        """
        self._shape = shape
        self._x_dtype = x_dtype
        self._device = device
        self._engine = engine
        self._masks = masks
        self._note = note
        self.noted: HostPart | None = None
        self._staged_notes: deque[HostPart | None] = deque()
        self._ring: PinnedRing | None = None

    def next(self, rows: RowSource, out: Batch | None) -> Batch | None:
        """Return the next batch on the device. Widening is enqueued on the current stream.

        Raises: InvalidRequest while the caller captures a CUDA graph; no batch is lost.
        """
        self._engine.refuse_capture()
        if (self._ring is None or not self._ring.staged_count) and not self._stage(rows):
            return None
        assert self._ring is not None
        batch = out or (
            torch.empty(self._shape, dtype=self._x_dtype, device=self._device),
            torch.empty(self._shape, dtype=torch.int64, device=self._device),
        )
        self._ring.take(*batch)
        if self._note is not None:
            self.noted = self._staged_notes.popleft()
        if rows.ready(self._shape[0]):
            with suppress(InvalidRequest):  # its tokens do not fit: raised when it is wanted
                self._stage(rows)
        return batch

    def _stage(self, rows: RowSource) -> bool:
        batch_size, context_length = self._shape
        parts = rows.peek(batch_size)
        if parts is None:
            return False
        if self._ring is None:
            # The width of the tokens and their planes are known from the first frame on.
            shape, masks = (batch_size, context_length + 1), masks_of(parts, self._masks)
            self._ring = PinnedRing(self._engine, shape, narrow_dtype(parts), masks)
        require_tokens_fit(parts, self._x_dtype.itemsize)
        if self._note is not None:
            # Now: its rows are freed before the batch is taken.
            self._staged_notes.append(self._note(parts))
        self._ring.stage(parts)
        rows.consume(batch_size)
        return True


def transfer_for(
    device: torch.device,
    shape: tuple[int, int],
    x_dtype: torch.dtype,
    *,
    masks: Collection[int],
    note: Note | None = None,
) -> Transfer[torch.Tensor]:
    """Return the transfer to a device for batches of shape (batch_size, context_length).

    masks: kinds of planes that mask targets, where the rows have them.  note: sets `noted`; it is
    called with the rows of each batch.
    """
    if device.type == "cpu":
        return CpuTransfer(shape, x_dtype, masks, note=note)
    if device.type == "cuda":
        engine = cuda_copy_engine(device)
        return PinnedTransfer(shape, x_dtype, device, engine, masks, note=note)
    return DirectTransfer(shape, x_dtype, device, masks, note=note)


def usable_device(device: torch.device | str) -> torch.device:
    """Return a device by its name.  Raises: InvalidRequest if this machine does not have it."""
    try:
        found = torch.device(device)
        if found.type == "cpu":
            return torch.device("cpu")  # without an index
        if found.type != "cuda":
            torch.empty(0, device=found).cpu()
        return found
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InvalidRequest("device", f"{device!r} is not available: {error}") from None


def indexed(device: torch.device) -> torch.device:
    """Return a device with its index; "cuda" gets that of the current device.  Raises:
    InvalidRequest if there is no CUDA device.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        problem = f"{device} is not available: torch finds no CUDA device"
        raise InvalidRequest("device", f"{problem}; without device= batches are on the CPU")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
