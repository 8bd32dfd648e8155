"""The rate limit for polling files: a fixed number of stat calls per second in the process.

On Lustre or NFS, each stat call is a request to a metadata server: 60,000 per second and server for
60,000 shards, if each is polled once a second. So all datasets share one limit, without bursts.
"""

from __future__ import annotations

import threading
import time

STATS_PER_SECOND = 500
"""The limit for all stat calls together."""
_SPACING_SECONDS = 1.0 / (0.8 * STATS_PER_SECOND)
"""A fifth is reserved for threads that are late for their slot, and for tokens and certificates,
which are polled once a second too."""
POLL_SECONDS = 1.0
"""Minimum time between two polls of one file."""


class PollRate:
    """The rate limiter for stat calls; one per process, shared by its datasets.

    never: whether files never change. Then they are not polled; a file is examined only to find
    out why it cannot be read.
    """

    def __init__(self, never: bool = False) -> None:
        """The first slot is available at once."""
        self.never = never
        self._lock = threading.Lock()
        self._next_at = 0.0

    def wait_turn(self) -> None:
        """Wait for a slot for one stat call. Slots are assigned first come, first served."""
        with self._lock:
            now = time.monotonic()
            turn_at = max(now, self._next_at)
            self._next_at = turn_at + _SPACING_SECONDS
        if turn_at > now:
            time.sleep(turn_at - now)


def pause_seconds(file_count: int) -> float:
    """Return the pause between two polls of a dataset that polls its files one after the other."""
    return POLL_SECONDS / file_count
