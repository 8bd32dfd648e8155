"""What a feed says of itself: where it stands, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FeedPosition(NamedTuple):
    """Where a feed stands.

    samples: handed out before, by all ranks, counted from sample 0 of the stream.  epoch: that the
    next sample is in; None where the order has no epochs.
    """

    samples: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a feed has done so far, on this rank.

    batches, tokens: handed out (tokens of x).  wait_seconds: that `next` waited for data.
    reconnects: times that a stream broke and was taken up again.  samples, epoch: as in
    FeedPosition, but no epoch before the first batch.
    """

    batches: int
    tokens: int
    wait_seconds: float
    reconnects: int
    samples: int
    epoch: int | None


@dataclass(slots=True)
class Counters:
    """What streams count for `stats`.  wait_seconds: that the consumer waited for rows.
    reconnects: times that rows came again after a break.
    """

    wait_seconds: float = 0.0
    reconnects: int = 0
