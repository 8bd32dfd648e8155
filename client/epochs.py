"""One epoch as a sized iterable: the same number of batches on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest

from .widening import Batch

Tail = Literal["drop", "wrap", "pad"]
TAILS: tuple[str, ...] = get_args(Tail)

PADDING = -100
"""The target that torch's cross_entropy leaves out (its ignore_index)."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Which samples an epoch's batches hold. Pure arithmetic.

    windows: in an epoch, at least 0.  batch_size, rank, world_size: as for a position.  epoch: at
    least 0.
    """

    windows: int
    batch_size: int
    rank: int
    world_size: int
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
        samples_per_step = self.batch_size * self.world_size
        left = max(0, self.end_sample - first_sample)
        return left // samples_per_step if self.tail == "drop" else -(-left // samples_per_step)

    def dropped_count(self, first_sample: int) -> int:
        """Return the samples that no rank gets."""
        left = max(0, self.end_sample - first_sample)
        return left % (self.batch_size * self.world_size) if self.tail == "drop" else 0

    def own_rows(self, first_sample: int) -> int:
        """Return how many rows of this rank's batch at a sample belong to the epoch, in [0, B]."""
        first_row_sample = first_sample + self.rank * self.batch_size
        return min(max(0, self.end_sample - first_row_sample), self.batch_size)


class EpochFeed(Protocol):
    """What an epoch needs of the feed that it is an epoch of."""

    def plan_epoch(self, epoch: int, tail: Tail) -> EpochPlan:
        """Return its plan; asks the server for the number of windows."""

    def read_epoch(self, plan: EpochPlan) -> Iterator[Batch]:
        """Read it, from where a loaded state stands or else from its beginning."""


class Epoch(IterableDataset[Batch]):
    """A sized iterable over one epoch; each `for` starts it anew.

    Only the first `for` after the feed was put within this epoch, by a loaded state, `skip` or
    `start_sample`, goes on from there instead.
    """

    def __init__(self, feed: EpochFeed, epoch: int, tail: Tail) -> None:
        """Remember what is to be read; does no I/O.  Raises: InvalidRequest if tail is none."""
        if tail not in TAILS:
            raise InvalidRequest("tail", f"{tail!r} is none of {', '.join(TAILS)}")
        self._feed = feed
        self._epoch = epoch
        self._tail: Tail = tail

    def __len__(self) -> int:
        """Return the batches of the whole epoch, the same number on every rank."""
        plan = self._feed.plan_epoch(self._epoch, self._tail)
        return plan.batch_count(plan.first_sample)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over its batches."""
        return self._feed.read_epoch(self._feed.plan_epoch(self._epoch, self._tail))


def pad_targets(y: torch.Tensor, own_rows: int) -> None:
    """Have a loss leave out the rows that are not of this epoch."""
    if own_rows < len(y):
        y[own_rows:].fill_(PADDING)
