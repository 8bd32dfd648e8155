"""How often files are looked at: so many stats a second in the whole process, and no burst.

A look is a request to a metadata server on Lustre or NFS. 60,000 shards looked at once a second
would be 60,000 requests a second and server; here all datasets share a fixed number.
"""

from __future__ import annotations

import threading
import time

STATS_PER_SECOND = 500
"""Of all kinds, at most."""
_SPACING_SECONDS = 1.0 / (0.8 * STATS_PER_SECOND)
"""A fifth is left for threads that come late to their turn, and for tokens and certificates, which
are looked at once a second too."""
POLL_SECONDS = 1.0
"""No file is looked at more often."""


class PollRate:
    """The turns of a process to look at a file; one for all of its datasets.

    never: whether files do not change. Then nobody looks at them, except to see why one cannot be
    read.
    """

    def __init__(self, never: bool = False) -> None:
        """Begin; the first turn comes at once."""
        self.never = never
        self._lock = threading.Lock()
        self._next_at = 0.0

    def wait_turn(self) -> None:
        """Wait for a turn to make one stat. Whoever comes first has the next one."""
        with self._lock:
            now = time.monotonic()
            turn_at = max(now, self._next_at)
            self._next_at = turn_at + _SPACING_SECONDS
        if turn_at > now:
            time.sleep(turn_at - now)


def pause_seconds(file_count: int) -> float:
    """Return how long to wait between two looks at the files of a dataset, each in its turn."""
    return POLL_SECONDS / file_count
