"""Fair scheduling of frames: round-robin over peers, first come first served within a peer. First
frames of connections come before others, three in a row at most.

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

# Streams at full speed: a slot for each processor. While one waits for its first frame: half of
# that, since the other processors have to accept connections and send. 200 streams that start
# together, 2 cores, milliseconds until half of them and all of them have their first frame: 304 and
# 571; with a slot for each processor 379 and 717; without first frames first 426 and 820.
# docs/decisions/0005-sync-server.md
AT_ONCE = len(os.sched_getaffinity(0))
AT_ONCE_STARTING = max(1, AT_ONCE // 2)
_STARTS_IN_A_ROW = 3
"""Then another frame: a client that connects again and again must not hold up those that stay."""


class _RoundRobin:
    """Threads that wait, in turn over their peers. Each has a lock, to be released at its turn."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, deque[threading.Lock]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, peer: str, turn: threading.Lock) -> None:
        """Add a thread behind the others of its peer."""
        self._turns.setdefault(peer, deque()).append(turn)
        self._size += 1

    def pop(self) -> threading.Lock:
        """Remove the next thread, and put its peer at the end."""
        peer, turns = self._turns.popitem(last=False)
        turn = turns.popleft()
        if turns:
            self._turns[peer] = turns
        self._size -= 1
        return turn


class FairScheduler:
    """Gives a few slots to threads, round-robin over their peers."""

    def __init__(
        self, slot_count: int = AT_ONCE, starting_slot_count: int = AT_ONCE_STARTING
    ) -> None:
        """Let this many threads work at the same time; starting_slot_count while a stream waits
        for its first frame, which comes before others.
        """
        self._lock = threading.Lock()
        self._slot_count = slot_count
        self._starting_slot_count = min(starting_slot_count, slot_count)
        self._running = 0
        self._starting, self._waiting = _RoundRobin(), _RoundRobin()
        self._starts_in_a_row = 0

    @property
    def waiting_count(self) -> int:
        """Threads that wait for a slot."""
        return len(self._starting) + len(self._waiting)

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
            queue = self._starting if starts else self._waiting
            if not self._starting and self._has_slot(queue):
                self._running += 1
                return None
            turn = threading.Lock()
            turn.acquire()
            queue.add(peer, turn)
            return turn

    def _release(self) -> None:
        with self._lock:
            self._running -= 1
            while (queue := self._next_queue()) and self._has_slot(queue):
                self._running += 1
                self._starts_in_a_row = self._starts_in_a_row + 1 if queue is self._starting else 0
                queue.pop().release()

    def _next_queue(self) -> _RoundRobin:
        """Return the queue whose turn it is; it is empty only if both are."""
        others_turn = self._waiting and self._starts_in_a_row >= _STARTS_IN_A_ROW
        return self._starting if self._starting and not others_turn else self._waiting

    def _has_slot(self, queue: _RoundRobin) -> bool:
        starts = queue is self._starting
        return self._running < (self._starting_slot_count if starts else self._slot_count)
