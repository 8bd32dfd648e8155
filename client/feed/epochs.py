"""One epoch as a sized iterable: the same number of batches on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import Position

from ..device.widening import Batch
from .batch_reader import BatchReader
from .cursor import Cursor
from .loaders import require_own_batches

_LOG = logging.getLogger("tokenfeed.client")

Tail = Literal["drop", "wrap", "pad"]
TAILS: tuple[str, ...] = get_args(Tail)

PADDING = -100
"""The target that torch's cross_entropy leaves out (its ignore_index)."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Which samples an epoch's batches hold. Pure arithmetic.

    windows: in an epoch, at least 0.  position: its batch size and ranks are meant.  epoch: at
    least 0.
    """

    windows: int
    position: Position
    epoch: int
    tail: Tail

    @property
    def first_sample(self) -> int:
        """The epoch's first sample."""
        return self.epoch * self.windows

    @property
    def end_sample(self) -> int:
        """The first sample of the next epoch."""
        return self.first_sample + self.windows

    def batch_count(self, first_sample: int) -> int:
        """Return the batches of each rank from a sample of this epoch on."""
        left, stride = max(0, self.end_sample - first_sample), self.position.stride
        return left // stride if self.tail == "drop" else -(-left // stride)

    def dropped_count(self, first_sample: int) -> int:
        """Return the samples that no rank gets."""
        left = max(0, self.end_sample - first_sample)
        return left % self.position.stride if self.tail == "drop" else 0

    def batch_end_sample(self, first_sample: int) -> int:
        """Return where the samples end, of all ranks, that the batch at a sample hands out: rows
        that are padding are of no sample.
        """
        end_sample = first_sample + self.position.stride
        return min(end_sample, self.end_sample) if self.tail == "pad" else end_sample

    def own_rows(self, first_sample: int) -> int:
        """Return how many rows of this rank's batch at a sample belong to the epoch, in [0, B]."""
        batch_size = self.position.batch_size
        first_row_sample = first_sample + self.position.rank * batch_size
        return min(max(0, self.end_sample - first_row_sample), batch_size)


class Epoch(IterableDataset[Batch]):
    """A sized iterable over one epoch; each `for` starts it anew.

    Only the first `for` after the feed was put within this epoch, by a loaded state, `skip` or
    `start_sample`, goes on from there instead.
    """

    def __init__(
        self,
        cursor: Cursor,
        make_plan: Callable[[int, Tail], EpochPlan],
        open_reader: Callable[[int, int], BatchReader],
        epoch: int,
        tail: Tail,
        world_size: int,
    ) -> None:
        """Remember what is to be read; does no I/O.

        cursor: of the feed that it is an epoch of.  make_plan: asks the server for the number of
        windows.  open_reader: begins to read so many batches from a sample on.  world_size: ranks
        that share the epoch.
        Raises: InvalidRequest if tail is none.
        """
        if tail not in TAILS:
            raise InvalidRequest("tail", f"{tail!r} is none of {', '.join(TAILS)}")
        self._cursor = cursor
        self._make_plan = make_plan
        self._open_reader = open_reader
        self._epoch = epoch
        self._tail: Tail = tail
        self._world_size = world_size

    def __len__(self) -> int:
        """Return the batches of the whole epoch, the same number on every rank."""
        plan = self._make_plan(self._epoch, self._tail)
        return plan.batch_count(plan.first_sample)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over its batches.

        Raises: InvalidRequest for a loader that would make other batches of these.
        """
        require_own_batches(self._world_size)
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        plan, cursor = self._make_plan(self._epoch, self._tail), self._cursor
        begin = cursor.seek_epoch(plan.first_sample, plan.end_sample)
        if dropped := plan.dropped_count(begin):
            _LOG.info("epoch=%d drops samples=%d", plan.epoch, dropped)
        batch_count = plan.batch_count(begin)
        if batch_count == 0:
            cursor.skip_to(plan.end_sample)
            return
        moves = cursor.moves
        reader = self._open_reader(begin, batch_count)
        try:
            for index in range(batch_count):
                if cursor.moves != moves:
                    raise InvalidRequest(
                        "epoch",
                        f"{plan.epoch} was still being read when its feed was moved, by skip, "
                        "load_state_dict, next or another epoch; begin it anew",
                    )
                first_sample = reader.sample
                batch = reader.next()
                if batch is None:
                    break
                if plan.tail == "pad":
                    _pad_targets(batch[1], plan.own_rows(first_sample))
                is_last = index == batch_count - 1
                cursor.commit(
                    first_sample,
                    plan.batch_end_sample(first_sample),
                    plan.end_sample if is_last else reader.sample,
                    reader.spec,
                )
                yield batch
        except GeneratorExit:
            # Python lets go of this iterator, and would swallow a Ctrl-C in what runs now. So
            # nothing does: the reader goes with this frame, which ends it.
            raise
        except BaseException:
            reader.close()
            raise
        reader.close()


def _pad_targets(y: torch.Tensor, own_rows: int) -> None:
    """Have a loss leave out the rows that are not of this epoch."""
    if own_rows < len(y):
        y[own_rows:].fill_(PADDING)
