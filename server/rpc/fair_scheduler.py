"""Fair scheduling of frames: round-robin over peers, first come first served within a peer.

When 200 streams start together, each is sent the several MiB that fit between a server and a client
that does not read yet. If the interpreter schedules the threads, some streams get all of that
before others get their first batch. And a peer would get more frames the more streams it opens.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

# Half of the processors encode frames, the others send them. Seconds until 200 streams that start
# together have their first frame on 2 cores, median and longest: without a scheduler 1.2 and 2.3,
# with 4 slots 0.9 and 1.6, 2 slots 0.5 and 1.0, 1 slot 0.2 to 0.4 and 0.5 to 0.6 (connecting alone
# takes 0.3). One stream, or 16 at full speed, are equally fast with any of them. Serving the stream
# with the fewest frames first was not better. 2026-11; docs/decisions/0005-sync-server.md
AT_ONCE = max(1, len(os.sched_getaffinity(0)) // 2)

# 5 to 7 MiB fit between a server and a client that does not read. 200 such streams got frames of
# 1 MiB and each kept two of them waiting: 2.3 MiB per stream, against 0.5 with small frames. 64
# streams at full speed got 110 Mtok/s with frames of 128 KiB throughout instead of 300, and 215 to
# 311 with frames of 256 KiB for the first UNREAD_BYTES.
CONTENDED_STREAMS = 16
CONTENDED_FRAME_BYTES = 1 << 18
UNREAD_BYTES = 8 << 20


class FairScheduler:
    """Gives a few slots to threads, round-robin over their peers."""

    def __init__(self, slot_count: int = AT_ONCE) -> None:
        """Let this many threads work at the same time."""
        self._lock = threading.Lock()
        self._free_slots = slot_count
        self._waiters: OrderedDict[str, deque[threading.Lock]] = OrderedDict()
        self._waiting = 0

    def cap_frame_bytes(self, frame_bytes: int, had_bytes: int) -> int:
        """Return the size of a stream's next frame. It is smaller while many streams wait, unless
        the stream was sent more bytes than its client can leave unread, so the client does read.
        """
        if self._waiting > CONTENDED_STREAMS and had_bytes < UNREAD_BYTES:
            return min(frame_bytes, CONTENDED_FRAME_BYTES)
        return frame_bytes

    @contextmanager
    def slot(self, peer: str) -> Iterator[None]:
        """Wait for a slot of a peer, and hold it for the duration of the with block."""
        if waiter := self._enqueue(peer):
            waiter.acquire()
        try:
            yield
        finally:
            self._release()

    def _enqueue(self, peer: str) -> threading.Lock | None:
        """Take a free slot, or return a lock that is released when the slot is assigned."""
        with self._lock:
            if self._free_slots:
                self._free_slots -= 1
                return None
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.setdefault(peer, deque()).append(waiter)
            self._waiting += 1
            return waiter

    def _release(self) -> None:
        with self._lock:
            if not self._waiters:
                self._free_slots += 1
                return
            peer, waiters = self._waiters.popitem(last=False)
            waiters.popleft().release()
            self._waiting -= 1
            if waiters:
                self._waiters[peer] = waiters  # at the end of the queue
