"""What the streams of a feed count, for its statistics.

Each value is changed by one thread at a time, and read by any thread without a lock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

WAIT_BOUNDS_SECONDS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds of the buckets of waits. A batch of 32 x 2048 is widened in about 0.1 ms, so a
shorter wait does not matter; a feed waits for away servers for 480 s by default.
"""


def _no_waits() -> list[int]:
    return [0] * (len(WAIT_BOUNDS_SECONDS) + 1)


@dataclass(slots=True)
class Counters:
    """What streams count.

    The consumer changes: wait_seconds, time that it waited for rows.  wait_counts: batches by that
    time, one bucket for each of WAIT_BOUNDS_SECONDS and one above; those that were ready are in the
    first.  waiting_since: start of the wait in progress, of time.monotonic.

    The thread that brings rows changes: rows and token_bytes, that have arrived.  frames,
    frame_bytes: the messages of servers that brought them.  server: that sent the last one.
    reconnects: how often rows arrived again after a break.  reconnect_reasons: the same by the name
    of the error.
    """

    wait_seconds: float = 0.0
    reconnects: int = 0
    wait_counts: list[int] = field(default_factory=_no_waits)
    waiting_since: float | None = None
    rows: int = 0
    token_bytes: int = 0
    frames: int = 0
    frame_bytes: int = 0
    server: str = ""
    reconnect_reasons: dict[str, int] = field(default_factory=dict)

    def count_wait(self, seconds: float) -> None:
        """Count a wait that has ended."""
        self.wait_counts[bisect_left(WAIT_BOUNDS_SECONDS, seconds)] += 1
        self.wait_seconds += seconds

    def count_rows(self, rows: int, token_bytes: int) -> None:
        """Count rows that have arrived."""
        self.rows += rows
        self.token_bytes += token_bytes

    def count_frame(self, frame_bytes: int, server: str) -> None:
        """Count a message of a server."""
        self.frames += 1
        self.frame_bytes += frame_bytes
        self.server = server

    def count_reconnect(self, reason: str) -> None:
        """Count rows that have arrived again after a break.  reason: the name of its error."""
        self.reconnects += 1
        self.reconnect_reasons[reason] = self.reconnect_reasons.get(reason, 0) + 1
