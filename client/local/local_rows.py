"""Rows of local files: gathered ahead by a thread, or by the consumer itself."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from tokenfeed.errors import TokenfeedError, Unreadable
from tokenfeed.wire.row_block import RowBlock

from ..runtime.counters import Counters
from ..runtime.malloc import keep_freed_memory
from ..runtime.notifier import RECHECK_SECONDS
from ..stream.background_rows import BackgroundRows, Source
from ..stream.queued_rows import QueuedRows

_LOG = logging.getLogger("tokenfeed.client")

_RETRY_SECONDS = 1.0
_HANG_SECONDS = 5.0


class Blocks(Protocol):
    """Blocks of rows, in order."""

    def next(self) -> RowBlock | None:
        """Read the next block; None at the end.  Raises: CorpusChanged; Unreadable: try again."""


class PatientBlocks:
    """Blocks that are tried again for as long as their files cannot be read."""

    def __init__(
        self, open_blocks: Callable[[Callable[[], bool]], Blocks], reconnect_seconds: float
    ) -> None:
        """Open nothing yet.

        open_blocks: is called before the first read, with a function that tells whether the blocks
        are over; raises TokenfeedError once they are.  reconnect_seconds: how long to try.
        """
        self._open = open_blocks
        self.reconnect_seconds = reconnect_seconds
        self._blocks: Blocks | None = None
        self.began_at = math.inf
        """When the read of this block began, by time.monotonic. Opening the files is no part of it:
        they may be hashed for long."""

    def next(self, pause: Callable[[float], bool]) -> RowBlock | None:
        """Read the next block; None at the end, or once pause returns True.

        pause: waits for some seconds; returns whether to stop.
        Raises: Unreadable after reconnect_seconds, CorpusError, RequestError.
        """
        if (blocks := self._blocks) is None:
            blocks = self._blocks = self._open(lambda: pause(0.0))
        began = self.began_at = time.monotonic()
        is_logged = False
        while True:
            try:
                return blocks.next()
            except Unreadable as error:
                if time.monotonic() - began >= self.reconnect_seconds:
                    raise
                if not is_logged:
                    is_logged = True
                    _LOG.warning("files cannot be read, retrying reason=%s", error)
            if pause(_RETRY_SECONDS):
                return None


class RowsAhead(BackgroundRows):
    """Rows that a thread gathers ahead. It holds no GIL while it copies."""

    thread_name = "tokenfeed-gather"

    def __init__(
        self, source: Source, blocks: PatientBlocks, counters: Counters, rows_ahead: int
    ) -> None:
        """Prepare; no I/O before `start`.  rows_ahead: to gather before they are consumed."""
        super().__init__(source, counters)
        self._blocks = blocks
        self._rows_ahead = rows_ahead

    @property
    def capacity_rows(self) -> int:
        """How many rows are gathered ahead; the last block may exceed it."""
        return self._rows_ahead

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: never, a gather ends by itself; for the supervisor."""
        super().due_seconds(now)
        return math.inf

    def cancel(self) -> None:
        """Do nothing."""

    def _bring(self) -> None:
        while not self._is_closed():
            block = self._blocks.next(self._pause)
            if block is None:
                return
            self._add(block)
            self._await_room(self._has_room)

    def _pause(self, seconds: float) -> bool:
        """Wait, unless these rows are closed.  Returns: whether they are."""
        return self._thread_notifier.wait_until(self._is_closed, seconds)

    def _has_room(self) -> bool:
        return self._received_row - self._consumed_row < self._rows_ahead

    def _due_seconds(self, now: float) -> float:
        return math.inf

    def _check_wait(self) -> None:
        """Raise Unreadable if the thread hangs: it gives up by itself before."""
        since = self._awaited_since
        limit_seconds = self._blocks.reconnect_seconds + _HANG_SECONDS
        if since is None:
            return
        if time.monotonic() - max(since, self._blocks.began_at) > limit_seconds:
            cure = "its disk may hang; timeouts=Timeouts(reconnect_seconds=...) waits longer"
            raise Unreadable("target", f"a file was not read for {limit_seconds:.0f} s: {cure}")


class RowsOnDemand(QueuedRows):
    """Rows that the consumer gathers when it needs them, without a thread; a RowSource."""

    capacity_rows = 0

    def __init__(self, source: Source, blocks: PatientBlocks, counters: Counters) -> None:
        """Prepare; no I/O before the first `peek`."""
        super().__init__()
        self._source = source
        self._blocks = blocks
        self._counters = counters
        self._closed = False

    def start(self, owner: object | None = None) -> None:
        """Start nothing."""
        keep_freed_memory()
        self._source.begin_use()

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """Like `RowSource.peek`."""
        counters = self._counters
        if self.ready(row_count):
            counters.wait_counts[0] += 1
        else:
            began = counters.waiting_since = time.monotonic()
            try:
                self._gather(row_count)
            finally:
                counters.waiting_since = None
                counters.count_wait(time.monotonic() - began)
        return self._parts(row_count) if self.ready(row_count) and not self._is_closed() else None

    def close(self) -> None:
        """Gather no more."""
        self._closed = True

    def _gather(self, row_count: int) -> None:
        while not (self.ready(row_count) or self._is_closed()):
            try:
                block = self._blocks.next(self._pause)
            except TokenfeedError:
                if self._is_closed():
                    return  # another thread, or a signal handler, has closed the files meanwhile
                raise
            if block is None:
                return
            self._counters.count_rows(len(block), block.tokens.nbytes)
            self._add(block)

    def _pause(self, seconds: float) -> bool:
        """Wait, unless these rows are closed.  Returns: whether they are."""
        end = time.monotonic() + seconds
        while not self._is_closed() and time.monotonic() < end:
            time.sleep(RECHECK_SECONDS)
        return self._is_closed()

    def _is_closed(self) -> bool:
        return self._closed or self._source.closed
