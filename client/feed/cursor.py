"""The position of a feed, the history of its batches, and whether it was moved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from tokenfeed.errors import SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position

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


class Snapshot(NamedTuple):
    """A value of `Cursor.current`.

    sample: the next sample of row 0 of rank 0, in [0, 2^63].  run: that which ends there.
    repositioned: False from the begin of an epoch loop until something else (a loaded state,
    `skip`, `next`) sets the position; True at first.  restored: whether the last move was a loaded
    state, and no batch was delivered since.
    """

    sample: int
    run: OpenRun
    repositioned: bool = True
    restored: bool = False

    def epoch_begin(self, first_sample: int, end_sample: int) -> tuple[int, Snapshot]:
        """Return the sample at which a loop over an epoch begins, and the value of `current` then;
        the loop replaces it with each batch, and ends if something else does.

        first_sample, end_sample: bound the epoch. If the feed was repositioned to a sample within
        them, the loop begins there, else at first_sample. The next sample stays as it is.
        """
        begins_here = self.repositioned and first_sample <= self.sample < end_sample
        return self.sample if begins_here else first_sample, self._replace(repositioned=False)


class Cursor:
    """The position of a feed, which any thread may read and move.

    current: all of it, immutable, and replaced in one assignment by each batch and each move: other
    threads and signal handlers read a consistent value. Who computes a value from the present one
    assigns it only if that is still the present one, in the next step: CPython, which has a global
    lock, switches threads and runs signal handlers only at calls and where it jumps back, and up to
    3.10 also at any jump. (There a Ctrl-C can also come where a function has returned.)
    """

    __slots__ = ("_world_size", "current")

    def __init__(self, position: Position) -> None:
        """position: where the feed begins, and the batch size there; its ranks apply to all
        batches.
        """
        self._world_size = position.world_size
        first = position.first_sample
        self.current = Snapshot(first, OpenRun(first, 0, History(), position.batch_size))

    @property
    def sample(self) -> int:
        """The next sample."""
        return self.current.sample

    @property
    def restored(self) -> bool:
        """Whether the last move was a loaded state, and no batch was delivered since."""
        return self.current.restored

    @property
    def now(self) -> tuple[int, int, History]:
        """The next sample, batches delivered by this feed, and the history, as one snapshot."""
        return self.at(self.current)

    def at(self, snapshot: Snapshot) -> tuple[int, int, History]:
        """Return what `now` returned when `current` had an earlier value.  snapshot: that value."""
        sample, run = snapshot.sample, snapshot.run
        if sample == run.first_sample:
            return sample, run.batches, run.earlier
        batches = run.batches + (sample - run.first_sample) // (run.batch_size * self._world_size)
        history = self._extended(run.earlier, run.first_sample, sample, run.batch_size)
        return sample, batches, history

    def before(self, sample: int) -> Snapshot:
        """Return the value that `current` would have with another next sample, after the same
        batches. Changes nothing.
        """
        now = self.current
        return now if sample == now.sample else self.passed(now, sample)

    def seek(self, sample: int, history: History | None = None) -> None:
        """Move to a sample.  history: of a loaded state; None keeps the current one."""
        self._replace(
            lambda now: self.passed(now, sample, history)._replace(restored=history is not None)
        )

    def skip(self, samples: int) -> None:
        """Move by some samples.  Raises: SamplesExhausted if the next one would be above 2^63."""

        def skipped(now: Snapshot) -> Snapshot:
            if samples > (left := SAMPLE_END - now.sample):
                problem = f"{samples} is not in [0, {left}], the samples left below 2^63"
                raise SamplesExhausted("samples", problem)
            return self.passed(now, now.sample + samples)

        self._replace(skipped)

    def moved(self, sample: int, history: History | None = None) -> Cursor:
        """Return another cursor that begins at a sample. This one does not change.  history: as for
        `seek`.
        """
        moved = copy(self)
        moved.seek(sample, history)
        return moved

    def passed(self, now: Snapshot, sample: int, history: History | None = None) -> Snapshot:
        """Return the value of `current` for another sample, after the same batches.

        now: the present value.  history: as for `seek`.
        """
        _, batches, before = self.at(now)
        known = before if history is None else history
        return Snapshot(sample, OpenRun(sample, batches, known, now.run.batch_size))

    def _replace(self, derive: Callable[[Snapshot], Snapshot]) -> None:
        """Replace `current` by what derives from it."""
        while True:
            before = self.current
            derived = derive(before)
            if self.current is before:
                self.current = derived
                return

    def after(
        self,
        first_sample: int,
        end_sample: int,
        next_sample: int,
        batch_size: int | None = None,
        *,
        of_epoch: bool = False,
    ) -> Snapshot:
        """Return the value of `current` behind a batch, whose assignment counts it.

        first_sample, end_sample: of its rows on all ranks, without padding.  next_sample: the
        position of the feed after it.  batch_size: its rows on each rank, padding included; None is
        that of the batch before.  of_epoch: whether a loop over an epoch delivers the batch. If so,
        the next loop over that epoch begins at its start; otherwise it goes on behind this batch.
        """
        sample, run = self.current.sample, self.current.run
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
        return Snapshot(next_sample, run, repositioned=not of_epoch)

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
