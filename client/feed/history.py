"""The history: the runs of batches that were delivered before a position. Pure.

After a skip, or a change of the batch size or of the number of ranks, one sample index cannot tell
what a model has seen. A history can: all batches of all ranks, in order. It is short, because
consecutive batches are one run. It has integers only: the stage of a sample is looked up in the
stream.

Immutable, so a reference to it stays consistent. The run in progress is added only on request
(cursor.py): a batch that continues it costs nothing here.
"""

from __future__ import annotations

from typing import NamedTuple

# 47 bytes per run as JSON, 93 at most, so below 100 KB in all. `state_dict` then takes 0.25 ms, and
# a batch that begins a run 9 microseconds. Training in one loop has a few runs, in stages some
# tens. Only a feed that reads each epoch by itself, or skips all the time, may reach a thousand. 2
# shared cores, 2026-11.
HISTORY_RUNS_MAX = 1000
"""Maximum number of runs in a history; beyond it the oldest are dropped."""


class Run(NamedTuple):
    """Batches that were delivered without a break.

    first_batch: number of batches before this run, in [0, 2^63).  first_sample: of row 0 of rank 0
    in its first batch, in [0, 2^63).  end_sample: in (first_sample, 2^63]; it may lie within the
    last batch, whose rows from there on were padding.  batch_size: rows per rank and batch.
    world_size: number of ranks; the run has the rows of all of them.
    """

    first_batch: int
    first_sample: int
    end_sample: int
    batch_size: int
    world_size: int

    @property
    def end_batch(self) -> int:
        """Number of batches up to the end of this run."""
        sample_count = self.end_sample - self.first_sample
        return self.first_batch + -(-sample_count // (self.batch_size * self.world_size))


class History(NamedTuple):
    """All batches that are known to have been delivered; possibly empty.

    earlier: the runs before the last one, at most HISTORY_RUNS_MAX - 1.  last: the run that the
    next batch may continue; None before the first batch.
    """

    earlier: tuple[Run, ...] = ()
    last: Run | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first."""
        return self.earlier if self.last is None else (*self.earlier, self.last)

    @property
    def first_batch(self) -> int:
        """The first batch that is still known: above 0 if the oldest runs were dropped."""
        oldest = self.earlier[0] if self.earlier else self.last
        return 0 if oldest is None else oldest.first_batch

    @property
    def end_sample(self) -> int:
        """The sample behind all that were delivered; 0 if none were."""
        return max((run.end_sample for run in self.runs), default=0)

    def ahead_of(self, sample: int) -> int:
        """Return the first sample that may still change for a feed at a sample: that sample, or the
        end of all that was delivered if a loop went back. A delivered sample keeps its stage.
        """
        return max(sample, self.end_sample)

    def extended(
        self, first_sample: int, end_sample: int, batch_size: int, world_size: int
    ) -> History:
        """Return the history plus one or more consecutive batches; arguments as of a Run."""
        last = self.last
        if last is None:
            return History((), Run(0, first_sample, end_sample, batch_size, world_size))
        first_batch, begin, end, rows, ranks = last
        # A run ends with a partial batch: else the start of the next batch would be unknown.
        if (
            end == first_sample
            and rows == batch_size
            and ranks == world_size
            and (end - begin) % (rows * ranks) == 0
        ):
            return History(self.earlier, Run(first_batch, begin, end_sample, rows, ranks))
        return History(
            (*self.earlier, last)[1 - HISTORY_RUNS_MAX :],
            Run(last.end_batch, first_sample, end_sample, batch_size, world_size),
        )

    def since(self, first_sample: int) -> History:
        """Return the newest part of the history in which all samples are at or above first_sample.
        A run that begins below it is cut at its first batch that begins at or above it. The stages
        of earlier samples are not known any more.
        """
        kept: list[Run] = []
        for run in reversed(self.runs):
            stride = run.batch_size * run.world_size
            left_out = -(-max(0, first_sample - run.first_sample) // stride)
            begin = run.first_sample + left_out * stride
            if begin < run.end_sample:
                first_batch = run.first_batch + left_out
                kept.append(run._replace(first_batch=first_batch, first_sample=begin))
            if left_out:
                break
        return history_of(kept[::-1])


def history_of(runs: list[Run]) -> History:
    """Return the history of runs, oldest first; of too many, it keeps the newest."""
    return History(tuple(runs[-HISTORY_RUNS_MAX:-1]), runs[-1]) if runs else History()
