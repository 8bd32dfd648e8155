"""What is counted of frames: totals by dataset and order, durations by size, and rates."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

RATE_SECONDS = 10
"""Rates and shares are averages over this time."""
LINE_SECONDS = 60
"""Seconds of the rates that are drawn."""

BOUNDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets of histograms, in seconds; a frame of 1 MiB takes about 0.001."""


class Labels(NamedTuple):
    """What frames are counted by; ("", "mixture-1") for frames of mixtures."""

    dataset: str
    order: str


@dataclass(slots=True)
class Histogram:
    """Durations by size.

    counts: of each bucket, and of all longer ones.  seconds: their sum.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> Histogram:
        """Return a copy."""
        return Histogram(self.counts.copy(), self.seconds)


@dataclass(slots=True)
class RowCounts:
    """Rows sent, and the bytes of their tokens, of one dataset in one order of its own."""

    rows: int = 0
    token_bytes: int = 0


@dataclass(slots=True)
class FrameCounts:
    """Frames of the streams of one order: of a dataset, or of all mixtures.

    frame_bytes: of whole messages.  opened, open: streams that began, and that have a call now.
    make_seconds: to make a frame, with the wait for its turn.  send_seconds: until its client took
    it.  first_seconds: from the first request of a stream to its first frame.
    """

    frames: int = 0
    frame_bytes: int = 0
    opened: int = 0
    open: int = 0
    make_seconds: Histogram = field(default_factory=Histogram)
    send_seconds: Histogram = field(default_factory=Histogram)
    first_seconds: Histogram = field(default_factory=Histogram)

    def copy(self) -> FrameCounts:
        """Return a copy."""
        return replace(
            self,
            make_seconds=self.make_seconds.copy(),
            send_seconds=self.send_seconds.copy(),
            first_seconds=self.first_seconds.copy(),
        )


class Totals(NamedTuple):
    """What all streams did since the start.

    rows: by dataset and the order of the rows.  frames: by dataset and the order of the streams.
    """

    rows: dict[Labels, RowCounts]
    frames: dict[Labels, FrameCounts]


class Sent(NamedTuple):
    """What was sent of a dataset since the start; its rates over the last seconds; and the bytes of
    its tokens in each of them. The fields are those of DatasetStatus.
    """

    rows: int
    token_bytes: int
    rows_per_second: float
    token_bytes_per_second: float
    second_bytes: list[int]


class Seconds:
    """Totals at the end of each of the last seconds, for rates."""

    def __init__(self) -> None:
        """Begin with none."""
        self._totals: deque[tuple[float, int]] = deque(maxlen=LINE_SECONDS + 1)

    def add(self, now: float, total: int) -> None:
        """Add a total."""
        self._totals.append((now, total))

    def of_nothing(self) -> Seconds:
        """Return these times of something that was first counted later: a total of 0 at each."""
        found = Seconds()
        found._totals.extend((at, 0) for at, _ in self._totals)
        return found

    def each(self) -> list[int]:
        """Return what was added to the total in each second, the latest one last."""
        totals = [total for _, total in self._totals]
        return [after - before for before, after in itertools.pairwise(totals)]

    def rate(self, now: float, total: int) -> float:
        """Return the average of the last RATE_SECONDS, per second."""
        recent = list(self._totals)[-RATE_SECONDS:]
        if not recent or now <= recent[0][0]:
            return 0.0
        return (total - recent[0][1]) / (now - recent[0][0])
