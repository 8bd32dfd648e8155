"""Where a feed stands, and whether it was moved meanwhile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Cursor:
    """The position of a feed. Read from any thread, moved by the consumer's.

    sample: the next one of row 0 of rank 0, in [0, 2^63].  batches: handed out so far.  moves: how
    often it was moved; whoever reads on its own compares.  placed: whether it stands where a loaded
    state, `skip` or `start_sample` has put it.
    """

    sample: int
    batches: int = 0
    moves: int = 0
    placed: bool = True

    def go_to(self, sample: int) -> None:
        """Put it somewhere else."""
        self.moves += 1
        self.placed = True
        self.sample = sample

    def enter(self, first_sample: int, end_sample: int) -> int:
        """Return where to begin within samples: where it was placed, or else with the first."""
        begins_here = self.placed and first_sample <= self.sample < end_sample
        self.placed = False
        self.moves += 1
        return self.sample if begins_here else first_sample

    def hand_out(self, next_sample: int) -> None:
        """Count a batch. The sample comes last: an interrupt before it costs no batch."""
        self.batches += 1
        self.placed = False
        self.sample = next_sample
