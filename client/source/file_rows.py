"""Rows of local files: gathered ahead by a thread, or by the consumer itself."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenfeed.errors import TokenfeedError, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.frame import FRAME_BYTES_FIRST, FRAME_BYTES_TARGET, rows_per_frame
from tokenfeed.wire.row_block import RowBlock

from ..runtime.counters import Counters
from ..runtime.malloc import keep_freed_memory
from .background_rows import BackgroundRows
from .calls import Calls
from .datasets import Datasets

if TYPE_CHECKING:
    from tokenfeed.server.open_local import LocalDatasets
    from tokenfeed.server.rows.reader import RowReader

_LOG = logging.getLogger("tokenfeed.client")

_RETRY_SECONDS = 1.0
_HANG_SECONDS = 5.0


class FileRows(BackgroundRows):
    """The rows of a stream in order, read in blocks of up to a MiB: whole batches where they fit. A
    thread gathers them ahead, which holds no GIL while it copies; or, without one, the consumer
    when it needs them. They are tried again for as long as their files cannot be read.
    """

    thread_name = "tokenfeed-gather"

    def __init__(
        self,
        source: Datasets,
        open_files: Callable[[Callable[[], bool]], tuple[LocalDatasets, Calls]],
        counters: Counters,
        *,
        reconnect_seconds: float,
        rows_ahead: int,
    ) -> None:
        """Prepare; no I/O before `start`.

        open_files: is called before the first read, with a function that tells whether these rows
        are over; raises TokenfeedError once they are.  reconnect_seconds: how long to try.
        rows_ahead: to gather before they are consumed; 0 means without a thread.
        """
        super().__init__(source, counters)
        self._open_files = open_files
        self._reconnect_seconds = reconnect_seconds
        self._rows_ahead = rows_ahead
        self._is_at_end = False
        self._read_at = math.inf
        """When the read of this block began, by time.monotonic. Opening the files, and planning its
        rows, are no part of it: both may take long."""
        self._opened: tuple[LocalDatasets, Calls] | None = None
        self._row = 0
        self._block_bytes = FRAME_BYTES_FIRST
        self._reader: RowReader | None = None
        self._planes: tuple[int, ...] = ()
        self._spans: Spans | None = None

    @property
    def capacity_rows(self) -> int:
        """How many rows are gathered ahead; the last block may exceed it."""
        return self._rows_ahead

    def start(self, owner: object | None = None) -> None:
        """Like `RowSource.start`."""
        if self._rows_ahead:
            super().start(owner)
        else:
            keep_freed_memory()
            self._source.begin_use()

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: never, a gather ends by itself; for the supervisor."""
        super().due_seconds(now)
        return math.inf

    # --- by a thread, or by the consumer ---

    def _bring(self) -> None:
        while not self._is_closed():
            self._gather()
            if self._is_at_end:
                return
            self._await_room(self._has_room)

    def _has_answer(self, row_count: int) -> bool:
        if self._rows_ahead:
            return super()._has_answer(row_count)
        return self.ready(row_count) or self._is_at_end or self._is_closed()

    def _await_more(self, row_count: int) -> None:
        if self._rows_ahead:
            super()._await_more(row_count)
            return
        try:
            self._gather()
        except TokenfeedError:
            if not self._is_closed():  # by another thread, or by a signal handler, meanwhile
                raise

    def _has_room(self) -> bool:
        return self._received_row - self._consumed_row < self._rows_ahead

    def _check_wait(self) -> None:
        """Raise Unreadable if the thread hangs: it gives up by itself before."""
        since = self._awaited_since
        limit_seconds = self._reconnect_seconds + _HANG_SECONDS
        if since is None:
            return
        if time.monotonic() - max(since, self._read_at) > limit_seconds:
            cure = "its disk may hang; timeouts=Timeouts(reconnect_seconds=...) waits longer"
            raise Unreadable("target", f"a file was not read for {limit_seconds:.0f} s: {cure}")

    # --- the blocks ---

    def _gather(self) -> None:
        block = self._block()
        if block is None:
            self._is_at_end = True
        else:
            self._add(block)

    def _block(self) -> RowBlock | None:
        """Read the next block, in new memory; None at the end, or once these rows are closed.

        Raises: Unreadable once the consumer has waited for reconnect_seconds; CorpusError,
        RequestError; Deleted, behind the rows before the one that needs deleted tokens.
        """
        if self._opened is None:
            self._opened = self._open_files(self._is_closed)
            self._row = self._opened[1].request.first_row
        began = self._read_at = time.monotonic()
        is_logged = False
        while True:
            try:
                return self._read(*self._opened)
            except Unreadable as error:
                since = self._awaited_since
                if since is not None and (
                    time.monotonic() - max(began, since) >= self._reconnect_seconds
                ):
                    raise
                if not is_logged:
                    is_logged = True
                    _LOG.warning("files cannot be read, retrying reason=%s", error)
            if self._thread_notifier.wait_until(self._is_closed, _RETRY_SECONDS):
                return None

    def _read(self, files: LocalDatasets, calls: Calls) -> RowBlock | None:
        """Read the next block; if it cannot be read, which takes about a second, the same one comes
        next.
        """
        end_row = calls.request.end_row
        if self._row == end_row:
            return None
        reader = self._reader
        if reader is None or (self._spans is None and reader.row == reader.end_row):
            part, expected, self._planes = calls.part(self._row, end_row)
            reader = self._reader = files.reader(part, expected)
            self._read_at = time.monotonic()
        try:
            if self._spans is None:
                self._spans = reader.take(self._block_row_count(reader))
            spans = self._spans
            block = reader.read(spans)
        except TokenfeedError as error:
            raise files.explained(error) from None
        count = len(block)
        self._spans = spans[count:] if count < len(spans) else None
        self._row += count
        return block.with_planes(self._planes)

    def _block_row_count(self, reader: RowReader) -> int:
        """Return the rows of the next block; few at first, so that the first batch is early."""
        row, batch_size = reader.row, reader.request.position.batch_size
        rows = rows_per_frame(self._block_bytes, reader.row_bytes)
        self._block_bytes = min(2 * self._block_bytes, FRAME_BYTES_TARGET)
        end = (row + rows) // batch_size * batch_size
        return (end if end > row else row + rows) - row
