"""Rows in order, brought by a background thread for one consumer.

No lock is used: the consumer may be interrupted anywhere, even by a signal handler that closes
these rows. A waiting thread sets its flag before its last check; it is notified only if the flag
is set.
"""

from __future__ import annotations

import math
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from tokenfeed.wire.row_block import RowBlock

from ..runtime.counters import Counters
from ..runtime.malloc import keep_freed_memory
from ..runtime.notifier import RECHECK_SECONDS, Notifier
from ..runtime.supervisor import END_SECONDS
from ..runtime.threads import detach_error, start_thread
from .datasets import Datasets


class BackgroundRows(ABC):
    """Rows that a thread reads in the background: a RowSource, and a Task of the supervisor.

    They are queued in the blocks in which they came. The thread adds blocks while the consumer
    takes rows: each value is changed by one of them, and read by the other without a lock.
    """

    thread_name = "tokenfeed-rows"

    def __init__(self, source: Datasets, counters: Counters) -> None:
        """Prepare; no I/O before `start`."""
        self._queue: deque[RowBlock] = deque()
        self._first_row = 0  # of the first block in the queue: its first row that is not consumed
        self._received_row = 0
        self._consumed_row = 0
        self._source = source
        self._counters = counters
        self._closed = False
        self._begun = False
        self._owner: weakref.ref[object] | None = None
        self._error: BaseException | None = None
        self._rows_awaited = False
        self._room_awaited = False
        self._awaited_since: float | None = None
        self._consumer_notifier, self._thread_notifier = Notifier(), Notifier()
        self._end_notifier = Notifier()
        self.ended = True
        """Whether no thread is bringing rows."""

    @abstractmethod
    def _bring(self) -> None:
        """Bring all rows, in the thread, until the end or until `_is_closed`.  Raises: an error for
        the consumer.
        """

    def _due_seconds(self, now: float) -> float:
        """Return when to cancel, while the rows are still needed: never, unless overridden."""
        return math.inf

    @abstractmethod
    def _check_wait(self) -> None:
        """Raise an error if the consumer has waited for too long."""

    def cancel(self) -> None:  # noqa: B027 - nothing to do for files
        """Cancel what the thread waits for; for the supervisor."""

    @property
    @abstractmethod
    def capacity_rows(self) -> int:
        """How many rows may be prefetched."""

    # --- the consumer's side ---

    @property
    def queued_rows(self) -> int:
        """Rows that have been added and not consumed, as any thread sees it."""
        consumed_row = self._consumed_row  # first: it never exceeds the other
        return self._received_row - consumed_row

    def ready(self, row_count: int) -> bool:
        """Return whether `peek` would return this many rows at once."""
        return self._received_row - self._consumed_row >= row_count

    def start(self, owner: object | None = None) -> None:
        """Like `RowSource.start`."""
        keep_freed_memory()
        self._supervisor = self._source.begin_use()
        if owner is not None:
            self._owner = self._supervisor.watch(owner)
        self.ended = False
        self._supervisor.add(self)
        start_thread(self._run, self.thread_name)

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """Like `RowSource.peek`; the parts are as they were added."""
        if self.ready(row_count):
            self._counters.wait_counts[0] += 1
        elif not self._has_answer(row_count):
            self._await_rows(row_count)
        if self._is_closed():
            return None
        if not self.ready(row_count):
            if self._error is not None:
                raise self._error
            return None
        return self._parts(row_count)

    def consume(self, row_count: int) -> None:
        """Remove rows that `peek` has returned, which makes room for others."""
        first = self._first_row + row_count
        while self._queue and first >= (size := len(self._queue[0].tokens)):
            self._queue.popleft()
            first -= size
        self._first_row = first
        self._consumed_row += row_count
        if self._room_awaited:
            self._room_awaited = False
            self._thread_notifier.notify()

    def close(self) -> None:
        """End the thread, within bounded time. May be called twice, from any thread and by a signal
        handler.
        """
        self._closed = True
        if self.ended:
            return
        self._consumer_notifier.notify()
        self._supervisor.wake()
        if not self._end_notifier.wait_until(lambda: self.ended, END_SECONDS):
            self._source.abandon(self)

    def _has_answer(self, row_count: int) -> bool:
        return self.ready(row_count) or self.ended or self._is_closed()

    def _await_rows(self, row_count: int) -> None:
        counters = self._counters
        began = self._awaited_since = counters.waiting_since = time.monotonic()
        try:
            while not self._has_answer(row_count):
                self._await_more(row_count)
        finally:
            self._awaited_since = counters.waiting_since = None
            counters.count_wait(time.monotonic() - began)

    def _await_more(self, row_count: int) -> None:
        """Wait for the next rows, or for a while."""
        self._rows_awaited = True
        if not self._has_answer(row_count):
            self._consumer_notifier.wait(RECHECK_SECONDS)
        self._check_wait()

    def _parts(self, row_count: int) -> list[RowBlock]:
        """Return the next rows, which are ready, in the parts in which they were added."""
        first = self._first_row
        block = self._queue[0]
        left = len(block.tokens) - first
        if left >= row_count:
            return [block[first : first + row_count]]
        parts = [block[first:]]
        row_count -= left
        while row_count:
            # By index: another thread may append meanwhile, which would break an iterator.
            parts.append(self._queue[len(parts)][:row_count])
            row_count -= len(parts[-1])
        return parts

    # --- the thread's side ---

    def _add(self, rows: RowBlock) -> None:
        self._counters.count_rows(len(rows), rows.tokens.nbytes)
        self._queue.append(rows)
        self._received_row += len(rows)
        if self._rows_awaited:
            self._rows_awaited = False
            self._consumer_notifier.notify()

    def _await_room(self, has_room: Callable[[], bool]) -> None:
        """Wait until the consumer has made room, or until these rows are closed."""
        while not (self._is_closed() or has_room()):
            self._room_awaited = True
            if not (self._is_closed() or has_room()):
                self._thread_notifier.wait()

    def _run(self) -> None:
        self._begun = True
        try:
            self._bring()
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._error = detach_error(error)
        self.ended = True
        self._consumer_notifier.notify()
        self._end_notifier.notify()
        self._supervisor.wake()

    # --- the supervisor's side ---

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: when the rows are not needed any more, or as `_due_seconds`."""
        if self._owner is not None and self._owner() is None:
            self._closed = True
        if self._is_closed():
            if not self._begun:
                self.ended = True  # its thread never ran, or will end at once
            self._consumer_notifier.notify()
            self._thread_notifier.notify()
            return 0.0
        return self._due_seconds(now)

    def _is_closed(self) -> bool:
        return self._closed or self._source.closed
