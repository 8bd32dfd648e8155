"""Fair scheduling of frames: round-robin over peers, first come first served within a peer. First
frames of connections come before others, three in a row at most.

When 200 streams start together, each is sent the several MiB that fit between a server and a client
that does not read yet. If the interpreter schedules the threads, some streams get all of that
before others get their first batch. And a peer would get more frames the more streams it opens.
And storage may hang: a slot that hangs does not stop the others, and a call waits for a slot no
longer than its client is there.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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
_HANG_SECONDS = 1.0
"""A slot that is held for longer hangs: a frame takes milliseconds. The threads that wait look for
such slots this often, and ask whether their own call still has a client."""


class CallEnded(Exception):
    """The client of a call went away while the call waited for a slot."""


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

    def remove(self, peer: str, turn: threading.Lock) -> None:
        """Remove a thread that waits."""
        turns = self._turns[peer]
        turns.remove(turn)
        if not turns:
            del self._turns[peer]
        self._size -= 1


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
        self._running: dict[threading.Lock, float] = {}
        """When each slot was taken, by time.monotonic, by the lock of the thread that holds it."""
        self._starting, self._waiting = _RoundRobin(), _RoundRobin()
        self._starts_in_a_row = 0

    @property
    def waiting_count(self) -> int:
        """Threads that wait for a slot."""
        return len(self._starting) + len(self._waiting)

    @contextmanager
    def slot(
        self, peer: str, *, starts: bool = False, is_active: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Wait for a slot of a peer, and hold it for the duration of the with block.

        starts: whether it is for the first frame of a stream.  is_active: tells whether the call
        still has a client; it is asked once a second while the call waits.  Raises: CallEnded.
        """
        queue, turn = self._starting if starts else self._waiting, threading.Lock()
        if not self._take(queue, peer, turn):
            self._wait(queue, peer, turn, is_active)
        try:
            yield
        finally:
            with self._lock:
                del self._running[turn]
                self._serve()

    def _take(self, queue: _RoundRobin, peer: str, turn: threading.Lock) -> bool:
        """Take a slot and return True if one is free. Otherwise lock the turn and queue it: it is
        unlocked when a slot is assigned to it.
        """
        with self._lock:
            if not self._starting and self._has_slot(queue):
                self._running[turn] = time.monotonic()
                return True
            turn.acquire()
            queue.add(peer, turn)
            return False

    def _wait(
        self, queue: _RoundRobin, peer: str, turn: threading.Lock, is_active: Callable[[], bool]
    ) -> None:
        """Wait until a queued turn has a slot.  Raises: CallEnded; the turn has none then."""
        while not turn.acquire(timeout=_HANG_SECONDS):
            is_ended = not is_active()
            with self._lock:
                # The slot may have been assigned after the timeout.
                if is_ended and self._running.pop(turn, None) is None:
                    queue.remove(peer, turn)
                self._serve()
            if is_ended:
                raise CallEnded

    def _serve(self) -> None:
        """Assign the free slots to those that wait. The caller holds the lock."""
        while (queue := self._next_queue()) and self._has_slot(queue):
            turn = queue.pop()
            self._running[turn] = time.monotonic()
            self._starts_in_a_row = self._starts_in_a_row + 1 if queue is self._starting else 0
            turn.release()

    def _next_queue(self) -> _RoundRobin:
        """Return the queue whose turn it is; it is empty only if both are."""
        others_turn = self._waiting and self._starts_in_a_row >= _STARTS_IN_A_ROW
        return self._starting if self._starting and not others_turn else self._waiting

    def _has_slot(self, queue: _RoundRobin) -> bool:
        if len(self._running) >= self._slot_count:
            return False
        if queue is self._waiting:
            return True
        # Slots that hang use no processor. If they counted, a stream that starts would wait for
        # them, and all others for that stream.
        hung_before = time.monotonic() - _HANG_SECONDS
        working = sum(taken_at > hung_before for taken_at in self._running.values())
        return working < self._starting_slot_count
