"""RemoteBatches: frames -> (x, y) on the device, prefetched. Knows nothing of grpc."""

from __future__ import annotations

import operator
import weakref
from types import TracebackType

import numpy as np
import torch

from tokenfeed import orders
from tokenfeed.errors import InvalidRequest
from tokenfeed.position import Position, require_range

from .ranks import data_parallel
from .stream import PREFETCH_BYTES, FrameStream, Rows, StreamRequest

Batch = tuple[torch.Tensor, torch.Tensor]

_NARROW = {2: (np.int16, 0xFFFF), 4: (np.int32, 0xFFFFFFFF)}
"""What tokens travel to a device as, and the mask that undoes the sign: torch has few operations
for uint16.
"""


class RemoteBatches:
    """Batches from a tokenfeed server, as if the corpus were local.

        for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0"):
            ...

    Yields (x, y): contiguous int64 tensors of shape (batch_size, context_length) on device; y is x
    shifted by one token. They belong to the caller. It is an iterator: a second `for` goes on after
    the last batch handed out. Nothing is sent before the first batch is asked for; from then on a
    thread receives ahead. `close()`, or leaving a `with` block, ends it.
    """

    def __init__(
        self,
        target: str,
        batch_size: int,
        context_length: int,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        dataset: str | None = None,
        order: str = "random",
        rank: int | None = None,
        world_size: int | None = None,
        start_step: int = 0,
        start_sample: int | None = None,
        num_batches: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        deadline_seconds: float | None = 600.0,
    ) -> None:
        """Describe a stream of batches; does no I/O.

        target: "HOST:PORT".  batch_size: rows per rank, in [1, 2^20].  context_length: tokens of x,
        in [1, longest file).
        seed: in [0, 2^64).  dataset: its name; may be left out where only one is served.
        order: "random" (any window, with replacement, endless), "shuffled" or "sequential" (each
        window once per epoch).
        rank, world_size: data-parallel coordinates; by default torch.distributed's, else RANK and
        WORLD_SIZE, else 0 of 1.
        start_step: batches of all ranks to begin after, at this batch size and world size.
        start_sample: the same as a sample index, whatever the sizes were before.  num_batches: None
        is without end.
        prefetch_bytes: room for what is received ahead.  deadline_seconds: how long to wait for a
        server that is away.

        Raises: InvalidRequest, SamplesExhausted or NotServed (order), naming the argument and its
        limit.
        Iterating raises what the server refuses (RequestError), CorpusError, and Unreachable after
        deadline_seconds.
        """
        rank, world_size = data_parallel(_integer("rank", rank), _integer("world_size", world_size))
        batch_size, context_length = (
            _require_integer("batch_size", batch_size),
            _require_integer("context_length", context_length),
        )
        seed, num_batches = _require_integer("seed", seed), _integer("num_batches", num_batches)
        first_sample = _first_sample(start_step, start_sample, batch_size * world_size)
        position = Position(first_sample, batch_size, rank, world_size)
        require_range(
            "prefetch_bytes", _require_integer("prefetch_bytes", prefetch_bytes), 0, 1 << 63
        )
        if not (deadline_seconds is None or deadline_seconds >= 0):
            raise InvalidRequest("deadline_seconds", f"{deadline_seconds} is negative")
        self._batch_size = batch_size
        self._context_length = context_length
        self._device = torch.device(device)
        self._stream = FrameStream(
            target,
            StreamRequest(
                dataset or "",
                orders.find(_versioned(order)),
                seed,
                context_length,
                position,
                num_batches,
            ),
            prefetch_bytes=prefetch_bytes,
            deadline_seconds=deadline_seconds,
        )
        self._started = False
        # Runs when this iterator is let go of, and at interpreter exit: the thread must not outlive
        # either.
        self._finalizer = weakref.finalize(self, self._stream.close)

    def __iter__(self) -> RemoteBatches:
        """Return this iterator itself: every `for` over it goes on where the last one stopped."""
        return self

    def __next__(self) -> Batch:
        """Return the next (x, y), waiting for it if need be."""
        if not self._started:
            self._started = True
            self._stream.start()
        parts = self._stream.peek(self._batch_size)
        if parts is None:
            raise StopIteration
        batch = self._widen_here(parts) if self._device.type == "cpu" else self._widen_there(parts)
        # Last of all, so that a Ctrl-C on the way here leaves the stream where it was.
        self._stream.advance(self._batch_size)
        return batch

    def close(self) -> None:
        """End the thread and the connection. May be called twice; iterating afterwards stops at
        once.
        """
        self._finalizer()

    def __enter__(self) -> RemoteBatches:
        """Return this iterator; the `with` block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _widen_here(self, parts: list[Rows]) -> Batch:
        """Widen into fresh tensors on the CPU, straight from the frames that the rows came in."""
        x = torch.empty((self._batch_size, self._context_length), dtype=torch.int64)
        y = torch.empty_like(x)
        x_rows, y_rows = x.numpy(), y.numpy()
        first = 0
        for rows in parts:
            np.copyto(x_rows[first : first + len(rows)], rows[:, :-1])
            np.copyto(y_rows[first : first + len(rows)], rows[:, 1:])
            first += len(rows)
        return x, y

    def _widen_there(self, parts: list[Rows]) -> Batch:
        """Copy to the device as narrow as the tokens came, and widen there."""
        rows = np.concatenate(parts)
        narrow, mask = _NARROW[rows.itemsize]
        staged = torch.from_numpy(rows.view(narrow)).to(self._device)
        wide = staged.to(torch.int64) & mask
        return wide[:, :-1].contiguous(), wide[:, 1:].contiguous()


def _versioned(order: str) -> str:
    """Return the name on the wire of an order: "random" is "random-1", for ever."""
    return order if "-" in order else f"{order}-1"


def _first_sample(start_step: int, start_sample: int | None, samples_per_step: int) -> int:
    step, sample = (
        _require_integer("start_step", start_step),
        _integer("start_sample", start_sample),
    )
    if step < 0:
        raise InvalidRequest("start_step", f"{step} is negative")
    if sample is None:
        return step * samples_per_step
    if step != 0:
        raise InvalidRequest("start_sample", "is given together with start_step; give one of them")
    if sample < 0:
        raise InvalidRequest("start_sample", f"{sample} is negative")
    return sample


def _integer(name: str, value: int | None) -> int | None:
    return None if value is None else _require_integer(name, value)


def _require_integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(name, f"{value!r} is no integer") from None
