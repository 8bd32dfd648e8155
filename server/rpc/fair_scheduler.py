"""Who makes the next frame when many streams want one at once: the peers in turn, and of each
whichever stream has waited longest.

200 streams that begin together are each sent the several MiB that fit between a server and a client
that is not reading yet. Left to the interpreter, which runs threads as they come, some have all of
that before others get their first batch. And left to the streams alone, a peer would get the more
the more streams it opens.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

# Half of the processors make frames, the others send them. Seconds until 200 streams that begin
# together have their first frame on 2 cores, median and longest: without turns 1.2 and 2.3, with
# four at once 0.9 and 1.6, two 0.5 and 1.0, one 0.2 to 0.4 and 0.5 to 0.6 (connecting alone takes
# 0.3). One stream, or 16 at full speed, are as fast with any of them. Giving whoever has had least
# the first turn was no better. 2026-11; docs/decisions/0005-sync-server.md
AT_ONCE = max(1, len(os.sched_getaffinity(0)) // 2)

# Between a server and a client that is not reading fit 5 to 7 MiB. 200 such streams were sent them
# in frames of 1 MiB, of which each kept two waiting: 2.3 MiB a stream, 0.5 with small ones. 64
# streams at full speed got 110 Mtok/s with frames of 128 KiB throughout instead of 300, and 215 to
# 311 with 256 KiB for so long.
CONTENDED_STREAMS = 16
CONTENDED_FRAME_BYTES = 1 << 18
UNREAD_BYTES = 8 << 20


class FairScheduler:
    """Lets a few threads work at once, and the others wait in the order in which they came."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        """Let so many work at once."""
        self._lock = threading.Lock()
        self._left = at_once
        self._gates: OrderedDict[str, deque[threading.Lock]] = OrderedDict()
        self._waiting = 0

    def cap_frame_bytes(self, frame_bytes: int, had_bytes: int) -> int:
        """Return how large the next frame of a stream should be: in a crowd, smaller than it would
        be, unless the stream has had more than fits on the way, so that it is known to read.
        """
        if self._waiting > CONTENDED_STREAMS and had_bytes < UNREAD_BYTES:
            return min(frame_bytes, CONTENDED_FRAME_BYTES)
        return frame_bytes

    @contextmanager
    def slot(self, peer: str) -> Iterator[None]:
        """Wait for a turn and hold it for the length of the with block.  peer: whose it is."""
        if gate := self._queue_up(peer):
            gate.acquire()
        try:
            yield
        finally:
            self._pass_on()

    def _queue_up(self, peer: str) -> threading.Lock | None:
        """Take a turn that is free, or return the lock that opens when it is one's turn."""
        with self._lock:
            if self._left:
                self._left -= 1
                return None
            gate = threading.Lock()
            gate.acquire()
            self._gates.setdefault(peer, deque()).append(gate)
            self._waiting += 1
            return gate

    def _pass_on(self) -> None:
        with self._lock:
            if not self._gates:
                self._left += 1
                return
            peer, gates = self._gates.popitem(last=False)
            gates.popleft().release()
            self._waiting -= 1
            if gates:
                self._gates[peer] = gates  # behind all others
