"""The position of a feed, the history of its batches, and whether it was moved."""

from __future__ import annotations

import logging
from copy import copy
from typing import NamedTuple, TypeAlias

from tokenfeed.stream.position import Position

from .history import HISTORY_RUNS_MAX, History

_LOG = logging.getLogger("tokenfeed.client")


class OpenRun(NamedTuple):
    """The run (history.py) that the next batch may continue. It ends at the feed's next sample,
    which `Cursor.current` holds beside it; a batch that continues the run changes only that sample.

    first_sample: where the run began.  batches: how many batches this feed had delivered before the
    run.  earlier: the history before the run, with that of a loaded state.  batch_size: of its
    batches.
    """

    first_sample: int
    batches: int
    earlier: History
    batch_size: int


Snapshot: TypeAlias = tuple[int, OpenRun]
"""A value of `Cursor.current`."""


class Cursor:
    """The position of a feed. Read from any thread, changed by the consumer's thread.

    current: the next sample of row 0 of rank 0, in [0, 2^63], and the run that ends there.
    Immutable, and replaced in one assignment: other threads and signal handlers read a consistent
    value, and an interrupt comes before or after the assignment.
    generation: rises with each move, with each batch outside of an epoch loop, and when an epoch
    loop begins; such a loop ends if something else changes it.  repositioned: False from the begin
    of an epoch loop until something else (a loaded state, `skip`, `next`) sets the position; True
    at first.  restored: whether the last move was a loaded state, and no batch was delivered since.
    """

    __slots__ = ("_world_size", "current", "generation", "repositioned", "restored")

    def __init__(self, position: Position) -> None:
        """position: where the feed begins, and the batch size there; its ranks apply to all
        batches.
        """
        self._world_size = position.world_size
        first = position.first_sample
        self.current = first, OpenRun(first, 0, History(), position.batch_size)
        self.generation = 0
        self.repositioned = True
        self.restored = False

    @property
    def sample(self) -> int:
        """The next sample."""
        return self.current[0]

    @property
    def now(self) -> tuple[int, int, History]:
        """The next sample, batches delivered by this feed, and the history, as one snapshot."""
        return self.at(self.current)

    def at(self, snapshot: Snapshot) -> tuple[int, int, History]:
        """Return what `now` returned when `current` had an earlier value.  snapshot: that value."""
        sample, run = snapshot
        if sample == run.first_sample:
            return sample, run.batches, run.earlier
        batches = run.batches + (sample - run.first_sample) // (run.batch_size * self._world_size)
        history = self._extended(run.earlier, run.first_sample, sample, run.batch_size)
        return sample, batches, history

    def before(self, sample: int) -> Snapshot:
        """Return the value that `current` would have with another next sample, after the same
        batches. Changes nothing.
        """
        if sample == self.sample:
            return self.current
        _, batches, history = self.now
        return sample, OpenRun(sample, batches, history, self.current[1].batch_size)

    def seek(self, sample: int, history: History | None = None) -> None:
        """Move to a sample.  history: of a loaded state; None keeps the current one."""
        self.generation += 1
        self.repositioned = True
        self.restored = history is not None
        self.skip_to(sample, history)

    def moved(self, sample: int, history: History | None = None) -> Cursor:
        """Return another cursor that begins at a sample. This one does not change.  history: as for
        `seek`.
        """
        moved = copy(self)
        moved.seek(sample, history)
        return moved

    def seek_epoch(self, first_sample: int, end_sample: int) -> int:
        """Return the sample at which a loop over an epoch begins, and note that a loop has begun.

        first_sample, end_sample: of the epoch. If the feed was repositioned to a sample within
        them, the loop begins there, else at first_sample. The next sample stays as it is.
        """
        begins_here = self.repositioned and first_sample <= self.sample < end_sample
        self.repositioned = False
        self.generation += 1
        return self.sample if begins_here else first_sample

    def skip_to(self, sample: int, history: History | None = None) -> None:
        """Set the next sample without delivering a batch. Unlike `seek` it is no move: only
        `current` changes.  history: as for `seek`.
        """
        _, batches, before = self.now
        known = before if history is None else history
        self.current = sample, OpenRun(sample, batches, known, self.current[1].batch_size)

    def after(
        self, first_sample: int, end_sample: int, next_sample: int, batch_size: int | None = None
    ) -> Snapshot:
        """Return the value of `current` behind a batch.

        first_sample, end_sample: of its rows on all ranks, without padding.  next_sample: the
        position of the feed after it.  batch_size: its rows on each rank, padding included; None is
        that of the batch before.
        """
        sample, run = self.current
        batch_size = batch_size or run.batch_size
        # A run ends with a partial batch.
        whole = end_sample == next_sample == first_sample + batch_size * self._world_size
        goes_on = sample == first_sample != run.first_sample and batch_size == run.batch_size
        if not (whole and goes_on):
            _, batches, before = self.now
            after = self._extended(before, first_sample, end_sample, batch_size)
            _log_first_drop(before, after)
            run = (
                OpenRun(first_sample, batches, before, batch_size)
                if whole
                else OpenRun(next_sample, batches + 1, after, batch_size)
            )
        return next_sample, run

    def commit(self, after: Snapshot, *, of_epoch: bool = False) -> None:
        """Count a batch, as the last step of its delivery.

        after: what `after` returned.  of_epoch: whether a loop over an epoch delivers the batch. If
        so, the next loop over that epoch begins at its start; otherwise it goes on behind this
        batch.
        `current` is assigned last: an interrupt before that loses no batch.
        """
        self.repositioned = not of_epoch
        self.restored = False
        if not of_epoch:
            self.generation += 1
        self.current = after

    def _extended(
        self, before: History, first_sample: int, end_sample: int, batch_size: int
    ) -> History:
        return before.extended(first_sample, end_sample, batch_size, self._world_size)


def _log_first_drop(before: History, now: History) -> None:
    """Log the first time that a history drops its oldest run."""
    if now.first_batch and not before.first_batch:
        _LOG.warning(
            "history is full, its oldest runs are dropped and only their batches are counted "
            "runs_max=%d",
            HISTORY_RUNS_MAX,
        )
