"""A device that works through its queues late and in any order that its waits allow.

What a ring leaves to chance goes wrong here in some order: a copy reads its memory when the device
comes to it, not when it was enqueued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from tokenfeed.client.device.widening import ignore_there, widen_there


class Event:
    """An event: set once the device has come past it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.passed = False

    def synchronize(self) -> None:
        while not self.passed:
            assert self._device.step(0) or self._device.step(1), "the device waits for ever"


class Device:
    """Two queues of work: the side stream and the consumer's. Is also the ring's engine."""

    def __init__(self, *, waits: bool = True) -> None:
        """waits: whether one queue waits for another at all; a faulty device does not."""
        self._queues: tuple[deque[Callable[[], bool]], ...] = (deque(), deque())
        self._waits = waits

    def step(self, queue: int) -> bool:
        """Do the next piece of work of a queue; say whether there was one that could be done."""
        if not self._queues[queue] or not self._queues[queue][0]():
            return False
        self._queues[queue].popleft()
        return True

    def finish(self) -> None:
        """Do all that is left."""
        while self.step(0) or self.step(1):
            pass
        assert not any(self._queues)

    def refuse_capture(self) -> None:
        """Nothing is captured here."""

    def pinned(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, -1, dtype=dtype)

    def buffer(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, -2, dtype=dtype)

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Event | None) -> Event:
        return self._enqueue(0, lambda: target.copy_(source), after)

    def widen(self, source: torch.Tensor, x: torch.Tensor, y: torch.Tensor, after: Event) -> Event:
        return self._enqueue(1, lambda: widen_there(source, x, y), after)

    def _enqueue(self, queue: int, work: Callable[[], object], after: Event | None) -> Event:
        mark = Event(self)

        def piece() -> bool:
            if self._waits and after is not None and not after.passed:
                return False
            work()
            mark.passed = True
            return True

        self._queues[queue].append(piece)
        return mark


class FaultyDevice(Device):
    """A device that treats tokens well, and the bits of targets behind them badly."""

    def __init__(self, row_tokens: int) -> None:
        """row_tokens: columns of a slot that hold tokens."""
        super().__init__()
        self.row_tokens = row_tokens


class DropsMasks(FaultyDevice):
    """Copies the tokens of a slot alone."""

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Event | None) -> Event:
        tokens = slice(0, self.row_tokens)
        return self._enqueue(0, lambda: target[:, tokens].copy_(source[:, tokens]), after)


class CopiesMasksLate(FaultyDevice):
    """Copies the bits behind the event that says that the slot was copied."""

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Event | None) -> Event:
        tokens, bits = slice(0, self.row_tokens), slice(self.row_tokens, None)
        copied = self._enqueue(0, lambda: target[:, tokens].copy_(source[:, tokens]), after)
        self._enqueue(0, lambda: target[:, bits].copy_(source[:, bits]), None)
        return copied


class CopiesMasksEarly(FaultyDevice):
    """Copies the bits when the copy is enqueued: into a slot that is perhaps not widened yet."""

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Event | None) -> Event:
        target[:, self.row_tokens :] = source[:, self.row_tokens :]
        return super().copy(source, target, after)


class AppliesMasksLate(FaultyDevice):
    """Widens the tokens in time, and reads the bits later, when the slot may be in use again."""

    def widen(self, source: torch.Tensor, x: torch.Tensor, y: torch.Tensor, after: Event) -> Event:
        tokens = source[:, : self.row_tokens]
        widened = self._enqueue(1, lambda: widen_there(tokens, x, y), after)
        if source.shape[1] > self.row_tokens:
            bits = source.view(torch.uint8)[:, self.row_tokens * source.itemsize :]
            self._enqueue(1, lambda: ignore_there(bits, y), None)
        return widened


FAULTY = (DropsMasks, CopiesMasksLate, CopiesMasksEarly, AppliesMasksLate)
