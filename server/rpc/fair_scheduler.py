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
from typing import NamedTuple

# Streams at full speed: a slot for each processor. While one waits for its first frame: half of
# that, since the other processors have to accept connections and send. 2 cores, 2026-11, 64 streams
# at full speed with 1, 2 and 4 slots: 942, 1,050 and 933 Mtok/s. 200 streams that start together,
# milliseconds until half of them and all of them have their first frame: 296 and 375 with 1 slot,
# 381 and 639 with 2, 656 and 1,096 with 4. Serving the stream with the fewest frames first was not
# better. docs/decisions/0005-sync-server.md
AT_ONCE = len(os.sched_getaffinity(0))
AT_ONCE_STARTING = max(1, AT_ONCE // 2)

# 5 to 7 MiB fit between a server and a client that does not read. 200 such streams got frames of
# 1 MiB and each kept two of them waiting: 2.3 MiB per stream, against 0.5 with small frames. 64
# streams at full speed got 110 Mtok/s with frames of 128 KiB throughout instead of 300, and 215 to
# 311 with frames of 256 KiB for the first UNREAD_BYTES.
CONTENDED_STREAMS = 16
CONTENDED_FRAME_BYTES = 1 << 18
UNREAD_BYTES = 8 << 20


class _Waiter(NamedTuple):
    """A thread that waits.  turn: is released when it is its turn."""

    turn: threading.Lock
    starts: bool


class FairScheduler:
    """Gives a few slots to threads, round-robin over their peers."""

    def __init__(
        self, slot_count: int = AT_ONCE, starting_slot_count: int = AT_ONCE_STARTING
    ) -> None:
        """Let this many threads work at the same time; starting_slot_count while a stream waits
        for its first frame.
        """
        self._lock = threading.Lock()
        self._slot_count = slot_count
        self._starting_slot_count = starting_slot_count
        self._running = 0
        self._waiters: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._waiting = 0
        self._starting = 0  # of those that wait

    def cap_frame_bytes(self, frame_bytes: int, sent_bytes: int) -> int:
        """Return the size of a stream's next frame. It is smaller while many streams wait, unless
        its connection was sent more bytes than a client can leave unread, so the client does read.
        """
        if self._waiting > CONTENDED_STREAMS and sent_bytes < UNREAD_BYTES:
            return min(frame_bytes, CONTENDED_FRAME_BYTES)
        return frame_bytes

    @contextmanager
    def slot(self, peer: str, *, starts: bool = False) -> Iterator[None]:
        """Wait for a slot of a peer, and hold it for the duration of the with block.

        starts: whether it is for the first frame of a stream.
        """
        if waiter := self._enqueue(peer, starts):
            waiter.acquire()
        try:
            yield
        finally:
            self._release()

    def _enqueue(self, peer: str, starts: bool) -> threading.Lock | None:
        """Take a free slot, or return a lock that is released when the slot is assigned."""
        with self._lock:
            if self._has_slot(starts):
                self._running += 1
                return None
            turn = threading.Lock()
            turn.acquire()
            self._waiters.setdefault(peer, deque()).append(_Waiter(turn, starts))
            self._waiting += 1
            self._starting += starts
            return turn

    def _release(self) -> None:
        with self._lock:
            self._running -= 1
            while self._waiters and self._has_slot():
                peer, waiters = self._waiters.popitem(last=False)
                waiter = waiters.popleft()
                self._running += 1
                self._waiting -= 1
                self._starting -= waiter.starts
                waiter.turn.release()
                if waiters:
                    self._waiters[peer] = waiters  # at the end of the queue

    def _has_slot(self, starts: bool = False) -> bool:
        few = starts or self._starting
        return self._running < (self._starting_slot_count if few else self._slot_count)
