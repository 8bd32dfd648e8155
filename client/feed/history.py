"""What was handed out: the runs of batches behind a position. Pure.

One sample number cannot say what a model saw once somebody skipped, changed the batch size or the
number of ranks. A history can: all batches of all ranks, in order, in a few lines, since batches
that continue each other are one run.

Never changed, so that whoever holds one holds a whole one. The run under way is not in it until
somebody asks (cursor.py): a batch that continues it costs nothing here.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from tokenfeed.stream.spec import StreamParts

# 47 bytes a run as JSON, 93 at most, so below 100 KB in all; `state_dict` then takes 0.25 ms, and a
# batch that begins a run 9 microseconds. Training in one loop has a handful of runs, in stages some
# tens; only who reads each epoch by itself, or skips all the time, may come to a thousand. 2 shared
# cores, 2026-11.
HISTORY_RUNS_MAX = 1000
"""Runs that a history keeps; of more, the oldest are left out."""


class Run(NamedTuple):
    """Batches that were handed out one after the other.

    first_batch: how many batches the history had before, in [0, 2^63).  first_sample: of row 0 of
    rank 0 in the first of them, in [0, 2^63).  end_sample: in (first_sample, 2^63]; it may lie
    within the last batch, whose rows from there on were padding.  batch_size: rows per rank and
    batch.  world_size: ranks; all of their rows are meant.  spec: which stream they are of.
    """

    first_batch: int
    first_sample: int
    end_sample: int
    batch_size: int
    world_size: int
    spec: StreamParts

    @property
    def end_batch(self) -> int:
        """How many batches the history has with this run."""
        sample_count = self.end_sample - self.first_sample
        return self.first_batch + -(-sample_count // (self.batch_size * self.world_size))


class History(NamedTuple):
    """All that was handed out, as far as it is known; the empty one knows of nothing.

    earlier: the runs before the last one, at most HISTORY_RUNS_MAX - 1.  last: the run that the
    next batch may continue; None where nothing was handed out.
    """

    earlier: tuple[Run, ...] = ()
    last: Run | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first."""
        return self.earlier if self.last is None else (*self.earlier, self.last)

    @property
    def first_batch(self) -> int:
        """The first batch that is still known: above 0 where the oldest runs were left out."""
        oldest = self.earlier[0] if self.earlier else self.last
        return 0 if oldest is None else oldest.first_batch

    def handed_out(
        self,
        first_sample: int,
        end_sample: int,
        batch_size: int,
        world_size: int,
        spec: StreamParts,
    ) -> History:
        """Return the history with one batch more, or several in a row; arguments as of a Run."""
        last = self.last
        if last is None:
            return History((), Run(0, first_sample, end_sample, batch_size, world_size, spec))
        first_batch, begin, end, rows, ranks, of = last
        # What ends within a batch ends a run: nobody could tell where the next batch began.
        if (
            end == first_sample
            and rows == batch_size
            and ranks == world_size
            and (of is spec or of == spec)
            and (end - begin) % (rows * ranks) == 0
        ):
            return History(self.earlier, Run(first_batch, begin, end_sample, rows, ranks, spec))
        return History(
            (*self.earlier, last)[1 - HISTORY_RUNS_MAX :],
            Run(last.end_batch, first_sample, end_sample, batch_size, world_size, spec),
        )


def history_of(runs: list[Run]) -> History:
    """Return the history of runs, oldest first; of too many, the newest."""
    return History(tuple(runs[-HISTORY_RUNS_MAX:-1]), runs[-1]) if runs else History()


def as_dicts(history: History) -> list[dict[str, Any]]:
    """Return the runs as dicts of plain values, each with the parts of its stream."""
    found = []
    for run in history.runs:
        values = run._asdict()
        spec = values.pop("spec")
        found.append(values | asdict(spec))
    return found
