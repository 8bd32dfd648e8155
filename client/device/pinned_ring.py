"""A ring of pinned buffers and their events: transfers rows to a CUDA device.

A batch takes two steps. `stage` copies its rows into pinned memory and enqueues the copy to the
device, in the served width and on a separate stream, so that it overlaps with the trainer's
computation. `take` makes the consumer's current stream wait for that copy, and widens there.

Everything runs on the consumer's thread. It waits for the device only if the last copy of a slot is
not done yet. The receiving thread makes no CUDA call, which would break a graph capture.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from tokenfeed.errors import InvalidRequest
from tokenfeed.wire.row_block import RowBlock

from .widening import join_into, narrow_dtype, narrow_shape, widen_there

SLOTS = 4
"""Batches whose memory the device may use while the host continues."""


@dataclass(slots=True)
class _Slot:
    """Memory for one batch in transfer.  copied, widened: None before the first use."""

    pinned: torch.Tensor
    buffer: torch.Tensor
    copied: torch.cuda.Event | None = None
    widened: torch.cuda.Event | None = None


class PinnedRing:
    """A queue of slots: batches are staged at one end and taken at the other."""

    def __init__(
        self,
        engine: CudaCopyEngine,
        shape: tuple[int, int],
        dtype: torch.dtype,
        masks: Collection[int] = (),
    ) -> None:
        """Allocate the slots.

        shape: (B, T + 1).  dtype: of the served tokens; wider tokens may follow later.
        masks: kinds of planes that all rows have and that mask targets. Their bits are in the same
        slot and the same copy as the tokens.
        """
        self._engine = engine
        self._shape = shape
        self._masks = masks
        self._free: deque[_Slot] = deque(_Slot(*self._memory(dtype)) for _ in range(SLOTS))
        self._staged: deque[_Slot] = deque()

    @property
    def staged_count(self) -> int:
        """Batches that are staged and not yet taken."""
        return len(self._staged)

    def stage(self, parts: Sequence[RowBlock]) -> None:
        """Start the transfer of a batch to the device. The rows are not needed afterwards."""
        slot = self._free[0]
        if slot.copied is not None:
            # The copy engine may still read it: overwriting it now would change an old batch.
            slot.copied.synchronize()
        if narrow_dtype(parts).itemsize > slot.pinned.itemsize:
            self._widen_slot(slot, narrow_dtype(parts))
        join_into(parts, slot.pinned, self._masks)
        # The buffer on the device is free only after its last batch was widened.
        slot.copied = self._engine.copy(slot.pinned, slot.buffer, slot.widened)
        self._staged.append(self._free.popleft())

    def _widen_slot(self, slot: _Slot, dtype: torch.dtype) -> None:
        """Give a slot wider memory: after a failover to a server that serves wider tokens."""
        if slot.widened is not None:
            # The old buffer may not be freed while the device reads it.
            slot.widened.synchronize()
        slot.pinned, slot.buffer = self._memory(dtype)

    def _memory(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        shape = narrow_shape(self._shape, dtype, self._masks)
        return self._engine.pinned(shape, dtype), self._engine.buffer(shape, dtype)

    def take(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Widen the oldest staged batch into x and y, on the consumer's current stream."""
        slot = self._staged[0]
        assert slot.copied is not None
        slot.widened = self._engine.widen(slot.buffer, x, y, slot.copied)
        self._free.append(self._staged.popleft())


class CudaCopyEngine:
    """What rings need of one CUDA device. Work is enqueued; only an event's synchronize waits.

    A ring uses it only on its consumer's thread.
    """

    def __init__(self, device: torch.device) -> None:
        """Create a side stream on a device. torch reuses a pool of 32 streams in turn."""
        self._device = device
        self._side = torch.cuda.Stream(device)

    def refuse_capture(self) -> None:
        """Raise InvalidRequest while the caller captures a graph: replayed, a batch would be the
        same for ever. Nothing was enqueued yet: a wait for the side stream would end the capture.
        """
        if torch.cuda.is_current_stream_capturing():
            raise InvalidRequest(
                "next", "cannot be captured in a CUDA graph; call it before the capture"
            )

    def pinned(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return page-locked host memory, which the device can read directly."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def buffer(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory on the device; the ring keeps it for its lifetime."""
        with torch.cuda.stream(self._side):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, after: torch.cuda.Event | None
    ) -> torch.cuda.Event:
        """Copy pinned memory to the device on the side stream, after the event `after`."""
        event = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._side):
            if after is not None:
                self._side.wait_event(after)
            target.copy_(source, non_blocking=True)
            event.record(self._side)
        return event

    def widen(
        self, source: torch.Tensor, x: torch.Tensor, y: torch.Tensor, after: torch.cuda.Event
    ) -> torch.cuda.Event:
        """Widen on the consumer's current stream of this device, after the event `after`."""
        event = torch.cuda.Event()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(after)
        widen_there(source, x, y)
        event.record(current)
        # The ring may be freed before the device gets here; its memory has to last until then.
        source.record_stream(current)
        return event


cuda_copy_engine = functools.cache(CudaCopyEngine)
"""The engine of a CUDA device, given with its index: shared by all feeds of this process."""
