"""Where a feed stands, what it has handed out, and whether it was moved meanwhile."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import StreamParts

from .history import HISTORY_RUNS_MAX, History

_LOG = logging.getLogger("tokenfeed.client")


class OpenRun(NamedTuple):
    """The run that is under way.

    first_sample: where it began; it ends where the feed stands.  batches: handed out by this feed
    before it.  earlier: what was handed out before it, by this feed and by those whose state it
    loaded.  spec: of which stream it is; None where no run is under way.

    So a batch that continues it costs no more than the number of the next sample.
    """

    first_sample: int
    batches: int
    earlier: History
    spec: StreamParts | None = None


class Cursor:
    """The position of a feed. Read from any thread, moved by the consumer's.

    standing: the next sample of row 0 of rank 0, in [0, 2^63], and the run before it. Replaced as a
    whole, in one assignment, and never changed: whoever reads it, another thread or a signal
    handler, reads one moment, and an interrupt comes before it or after it.
    moves: how often it was moved; whoever reads on its own compares.  placed: whether it stands
    where a loaded state, `skip` or `start_sample` has put it.
    """

    __slots__ = ("_position", "_stride", "moves", "placed", "standing")

    def __init__(self, position: Position) -> None:
        """position: where the feed begins; all of its batches are of that size, for as many ranks
        as that.
        """
        self._position = position
        self._stride = position.stride
        self.standing = position.first_sample, OpenRun(position.first_sample, 0, History())
        self.moves = 0
        self.placed = True

    @property
    def sample(self) -> int:
        """The next sample."""
        return self.standing[0]

    @property
    def now(self) -> tuple[int, int, History]:
        """The next sample, batches handed out by this feed, and the history, all of one moment."""
        sample, run = self.standing
        if run.spec is None:
            return sample, run.batches, run.earlier
        batches = run.batches + (sample - run.first_sample) // self._stride
        return sample, batches, self._handed_out(run.earlier, run.first_sample, sample, run.spec)

    def seek(self, sample: int, history: History | None = None) -> None:
        """Put it somewhere else.  history: that of a loaded state; None keeps what there is."""
        self.moves += 1
        self.placed = True
        self.skip_to(sample, history)

    def seek_epoch(self, first_sample: int, end_sample: int) -> int:
        """Return where to begin within samples: where it was placed, or else with the first."""
        begins_here = self.placed and first_sample <= self.sample < end_sample
        self.placed = False
        self.moves += 1
        return self.sample if begins_here else first_sample

    def skip_to(self, sample: int, history: History | None = None) -> None:
        """Go on with a sample; none is handed out on the way.  history: as for `seek`."""
        _, batches, before = self.now
        self.standing = sample, OpenRun(sample, batches, before if history is None else history)

    def commit(
        self, first_sample: int, end_sample: int, next_sample: int, spec: StreamParts
    ) -> None:
        """Count a batch.

        first_sample, end_sample: of its rows on all ranks, without padding.  next_sample: where the
        feed stands behind it.  spec: of which stream it is.

        The standing comes last: an interrupt before it costs no batch.
        """
        sample, run = self.standing
        # What ends within a batch ends a run.
        whole = end_sample == next_sample == first_sample + self._stride
        if not (whole and spec is run.spec and sample == first_sample):
            _, batches, before = self.now
            after = self._handed_out(before, first_sample, end_sample, spec)
            _log_left_out(before, after)
            run = (
                OpenRun(first_sample, batches, before, spec)
                if whole
                else OpenRun(next_sample, batches + 1, after)
            )
        self.placed = False
        self.standing = next_sample, run

    def _handed_out(
        self, before: History, first_sample: int, end_sample: int, spec: StreamParts
    ) -> History:
        position = self._position
        return before.handed_out(
            first_sample, end_sample, position.batch_size, position.world_size, spec
        )


def _log_left_out(before: History, now: History) -> None:
    """Say so when a history becomes too long for the first time."""
    if now.first_batch and not before.first_batch:
        _LOG.warning(
            "the history of this feed has more than %d runs: from now on its state leaves out the "
            "oldest ones, and says how many batches those were",
            HISTORY_RUNS_MAX,
        )
