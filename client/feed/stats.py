"""Statistics of a feed: its position and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class FeedPosition(NamedTuple):
    """The position of a feed.

    samples: delivered so far by all ranks, counted from sample 0 of the stream.  epoch: of the
    next sample; None if the order has no epochs.
    """

    samples: int
    epoch: int | None


class SourceStats(NamedTuple):
    """What a source of a mixture has contributed.

    samples, tokens: in the batches of all ranks of the feed's history (tokens of x).  epochs: the
    same as a part of the windows of its corpus; None for an order without epochs.
    """

    samples: int
    tokens: int
    epochs: float | None


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a feed has done so far, on this rank.

    batches, tokens: delivered (tokens of x).  wait_seconds: time that `next` waited for data.
    reconnects: how often a stream broke and was resumed.  samples, epoch: as in FeedPosition, but
    epoch is None before the first batch.  sources: of a mixture, by the names of their datasets.
    """

    batches: int
    tokens: int
    wait_seconds: float
    reconnects: int
    samples: int
    epoch: int | None
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
