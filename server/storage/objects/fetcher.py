"""The GETs of a process that are waiting, and the threads that do them.

A bounded number is on its way at once, over all datasets. Which one comes next: that which is due
first, among the streams that have less than their share on its way. So a stream that asks for
thousands of rows ahead does not hold up one that needs a row now.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ...runtime.threads.worker_threads import WorkerThreads

IN_FLIGHT_MAX = 128
"""GETs at once. 4 KiB from S3 take 24 ms: 5,000 a second, of 5,500 that a prefix gives."""


_Head = tuple[float, int, int]
"""When the first fetch of a stream is due, its number, and the stream."""


class Fetch:
    """A GET of some bytes of a file, and what became of it.

    file: index in its dataset.  first_byte, end_byte: counted from the beginning of the file.
    content, error: one of them once it is done.  due: when it is needed, by time.monotonic.
    is_done: whether it has ended, with its content or an error.  users: gathers that need an extent
    of it.  places: extents that are held for gathers.
    """

    __slots__ = (
        "_get", "_running", "content", "due", "end_byte", "error", "file", "first_byte",
        "is_begun", "is_done", "places", "stream", "users",
    )  # fmt: skip

    def __init__(
        self,
        file: int,
        first_byte: int,
        end_byte: int,
        get: Callable[[int, int, int], Any],
    ) -> None:
        """Take what is to be fetched.  get: does it, in any thread, given the three numbers."""
        self.file, self.first_byte, self.end_byte = file, first_byte, end_byte
        self.content: memoryview | None = None
        self.error: Exception | None = None
        self.due, self.stream, self.is_begun = 0.0, 0, False
        # Both are counted by who made it. Without a user, it is not done at all.
        self.users = self.places = 0
        self._get: Callable[[int, int, int], Any] | None = get
        # Held until it has ended: to make an Event took a fifth of the time of who reads rows.
        self.is_done, self._running = False, threading.Lock()
        self._running.acquire()

    @classmethod
    def of_content(cls, file: int, first_byte: int, content: memoryview) -> Fetch:
        """Return one that is done: its bytes are here."""
        found = cls(file, first_byte, first_byte + len(content), lambda *_: content)
        found.users = 1
        found.run()
        return found

    @property
    def size_bytes(self) -> int:
        """How many bytes it asks for."""
        return self.end_byte - self.first_byte

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most this long; return whether it has ended."""
        if not self.is_done and self._running.acquire(timeout=seconds):
            self._running.release()
        return self.is_done

    def fail(self, error: Exception) -> None:
        """End it without doing it.  error: what who waits is told."""
        self._get, self.error = None, error
        self._end()

    def run(self) -> None:
        """Do it."""
        get, self._get = self._get, None
        try:
            if get is not None and self.users > 0:
                self.content = memoryview(get(self.file, self.first_byte, self.end_byte))
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits for it
            self.error = error
        finally:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self._running.release()


class Fetcher:
    """Does fetches in threads of its own. May be used from several threads at once."""

    def __init__(self, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        """Start no thread yet.  in_flight_max: how many at once."""
        self._in_flight_max = in_flight_max
        self._threads = WorkerThreads(in_flight_max)
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._waiting: dict[int, list[tuple[float, int, Fetch]]] = {}
        # To look at each stream for each GET took 0.15 ms with 512 of them.
        self._heads: list[_Head] = []
        """A heap: the first of each queue, and some that are not the first any more."""
        self._full: dict[int, _Head] = {}
        """The first ones of streams that have their share on its way."""
        self._share = in_flight_max
        self._in_flight: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """Fetches of each stream that have not ended."""
        self._running = 0

    def submit(self, fetches: list[Fetch], due_seconds: float, stream: int) -> None:
        """Do fetches.  due_seconds: when they are needed, from now on.  stream: whose they are.

        If no thread can be started they fail, so that a gather which waits does them itself.
        """
        due = time.monotonic() + due_seconds
        with self._lock:
            for fetch in fetches:
                fetch.due, fetch.stream = due, stream
                self._left[stream] = self._left.get(stream, 0) + 1
                self._push(fetch)
            free = min(len(fetches), self._in_flight_max - self._running)
            self._running += max(0, free)
        refused = sum(not self._threads.submit(self._work) for _ in range(free))
        if refused:
            with self._lock:
                self._running -= refused
                left = [] if self._running else self._all_waiting()
            for fetch in left:
                fetch.fail(OSError(errno.EAGAIN, "no thread can be started to fetch it"))

    def hurry(self, fetches: list[Fetch]) -> None:
        """Do fetches before others of their stream, which are needed later."""
        now = time.monotonic()
        with self._lock:
            for fetch in fetches:
                if not fetch.is_begun and fetch.due > now:
                    fetch.due = now
                    self._push(fetch)  # the one that is in the queue already is skipped

    def _work(self) -> None:
        """Do fetches until none is left."""
        fetch: Fetch | None = None
        while True:
            with self._lock:
                if fetch is not None:
                    self._end(fetch.stream)
                fetch = self._next()
                if fetch is None:
                    self._running -= 1
                    return
            fetch.run()

    def _all_waiting(self) -> list[Fetch]:
        """Take all fetches that wait out of their queues."""
        queues, self._waiting, self._heads, self._full = self._waiting, {}, [], {}
        self._left = dict(self._in_flight)
        found = {fetch: None for queue in queues.values() for _, _, fetch in queue}
        left = [fetch for fetch in found if not fetch.is_begun]
        for fetch in left:
            fetch.is_begun = True  # or who hurries it meanwhile would have it done again
        return left

    def _push(self, fetch: Fetch) -> None:
        queue = self._waiting.setdefault(fetch.stream, [])
        heapq.heappush(queue, (fetch.due, next(self._order), fetch))
        if queue[0][2] is fetch:
            self._push_head(fetch.stream)

    def _push_head(self, stream: int) -> None:
        due, number, _ = self._waiting[stream][0]
        self._full.pop(stream, None)
        heapq.heappush(self._heads, (due, number, stream))

    def _end(self, stream: int) -> None:
        for counts in (self._in_flight, self._left):
            counts[stream] -= 1
            if not counts[stream]:
                del counts[stream]
        if stream in self._full and self._in_flight.get(stream, 0) < self._share:
            self._push_head(stream)

    def _next(self) -> Fetch | None:
        """Take the fetch that comes next out of its queue; None if none waits."""
        share = max(1, self._in_flight_max // max(1, len(self._left)))
        if share > self._share:
            for stream in list(self._full):
                self._push_head(stream)
        self._share = share
        while self._heads:
            head = heapq.heappop(self._heads)
            queue = self._waiting.get(head[2])
            if queue and queue[0][1] == head[1]:  # else it is not the first any more
                if self._in_flight.get(head[2], 0) < share:
                    return self._begun(head[2])
                self._full[head[2]] = head
        return self._begun(min(self._full.values())[2]) if self._full else None

    def _begun(self, stream: int) -> Fetch:
        """Take the first fetch of a stream."""
        queue = self._waiting[stream]
        fetch = heapq.heappop(queue)[2]
        fetch.is_begun = True
        self._in_flight[stream] = self._in_flight.get(stream, 0) + 1
        while queue and queue[0][2].is_begun:
            heapq.heappop(queue)
        if queue:
            self._push_head(stream)
        else:
            del self._waiting[stream]
            self._full.pop(stream, None)
        return fetch


_FETCHERS: list[Fetcher] = []
_LOCK = threading.Lock()


def fetcher() -> Fetcher:
    """Return that of this process."""
    with _LOCK:
        if not _FETCHERS:
            _FETCHERS.append(Fetcher())
        return _FETCHERS[0]


def _forget() -> None:
    """Know no fetcher, as in a fork, which has none of its threads."""
    global _LOCK
    _LOCK = threading.Lock()
    _FETCHERS.clear()


os.register_at_fork(after_in_child=_forget)
