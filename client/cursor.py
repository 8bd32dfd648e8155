"""Where a feed stands, what it has handed out, and whether it was moved meanwhile."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tokenfeed.position import Position
from tokenfeed.spec import StreamParts

from .history import HISTORY_RUNS_MAX, History

_LOG = logging.getLogger("tokenfeed.client")
_new = tuple.__new__


class Standing(NamedTuple):
    """Where a feed stands at one moment.

    sample: the next one of row 0 of rank 0, in [0, 2^63].  batches: handed out by this feed.
    earlier: what was handed out before the run that is under way, by this feed and by those whose
    state it loaded.  run_first_sample, run_spec: where that run began, and of which stream it is;
    it ends at sample. Without a stream no run is under way.

    So a batch that continues a run costs no more than to count it: 0.2 microseconds, where a
    history made anew for each costs 0.5 (2 shared cores, 2026-11).
    """

    sample: int
    batches: int
    earlier: History
    run_first_sample: int = 0
    run_spec: StreamParts | None = None

    def history(self, position: Position) -> History:
        """Return what was handed out before the sample.  position: of the feed, for its sizes."""
        if self.run_spec is None:
            return self.earlier
        return self.earlier.handed_out(
            self.run_first_sample,
            self.sample,
            position.batch_size,
            position.world_size,
            self.run_spec,
        )


class Cursor:
    """The position of a feed. Read from any thread, moved by the consumer's.

    standing: replaced as a whole, in one assignment, and never changed: whoever reads it, another
    thread or a signal handler, reads one moment, and an interrupt comes before it or after it.
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
        self.standing = Standing(position.first_sample, 0, History())
        self.moves = 0
        self.placed = True

    @property
    def sample(self) -> int:
        """The next sample."""
        return self.standing.sample

    @property
    def now(self) -> tuple[int, int, History]:
        """The next sample, batches handed out by this feed, and the history, all of one moment."""
        standing = self.standing
        return standing.sample, standing.batches, standing.history(self._position)

    def go_to(self, sample: int, history: History | None = None) -> None:
        """Put it somewhere else.  history: that of a loaded state; None keeps what there is."""
        self.moves += 1
        self.placed = True
        _, batches, before = self.now
        self.standing = Standing(sample, batches, before if history is None else history)

    def enter(self, first_sample: int, end_sample: int) -> int:
        """Return where to begin within samples: where it was placed, or else with the first."""
        begins_here = self.placed and first_sample <= self.sample < end_sample
        self.placed = False
        self.moves += 1
        return self.sample if begins_here else first_sample

    def leave(self, end_sample: int) -> None:
        """Go on behind samples of which none is handed out."""
        _, batches, before = self.now
        self.standing = Standing(end_sample, batches, before)

    def hand_out(
        self, first_sample: int, end_sample: int, next_sample: int, spec: StreamParts
    ) -> None:
        """Count a batch.

        first_sample, end_sample: of its rows on all ranks, without padding.  next_sample: where the
        feed stands behind it.  spec: of which stream it is.

        The standing comes last: an interrupt before it costs no batch.
        """
        sample, batches, earlier, run_first_sample, run_spec = self.standing
        # What ends within a batch ends a run.
        whole = end_sample == next_sample == first_sample + self._stride
        if not (whole and spec is run_spec and sample == first_sample):
            before = self.standing.history(self._position)
            now = Standing(end_sample, 0, before, first_sample, spec).history(self._position)
            _log_left_out(before, now)
            earlier, run_first_sample, run_spec = before, first_sample, spec
            if not whole:
                earlier, run_spec = now, None
        self.placed = False
        self.standing = _new(
            Standing, (next_sample, batches + 1, earlier, run_first_sample, run_spec)
        )


def _log_left_out(before: History, now: History) -> None:
    """Say so when a history becomes too long for the first time."""
    if now.first_batch and not before.first_batch:
        _LOG.warning(
            "the history of this feed has more than %d runs: from now on its state leaves out the "
            "oldest ones, and says how many batches those were",
            HISTORY_RUNS_MAX,
        )
