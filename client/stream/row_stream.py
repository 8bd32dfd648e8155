"""Rows in order, through failovers and reconnects.

One thread receives. It requests as many batches as fit into the buffer, sends the next request
shortly before the current call ends, checks every frame and queues its rows. It always reads a call
to its end, so a paused trainer never blocks a server. After a break it requests exactly the rows
after the last one that arrived. The feed's supervisor cancels its calls.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from functools import partial

from tokenfeed.errors import BadFrame, Unreachable
from tokenfeed.wire import frame
from tokenfeed.wire.request import Expected, StreamRequest, to_message
from tokenfeed.wire.row_block import RowBlock

from ..runtime.malloc import keep_freed_memory
from ..runtime.notifier import RECHECK_SECONDS, Notifier
from ..runtime.supervisor import END_SECONDS
from ..runtime.threads import detach_error, start_thread, without_traceback
from ..stats import Counters
from ..transport.channel import Call, Channel, DescribeCall, RpcError, drain_events, error_from_rpc
from ..transport.replicas import Replica
from .dataset_client import DatasetClient

PREFETCH_BYTES = 32 << 20
"""Two calls of 16 frames: one is read, one is requested ahead. As fast as one endless stream."""
_ROOM_LEFT_SHARE = 4
"""The next call is sent when a quarter of the room is left of the current one. Two calls that send
at the same time cost both sides a tenth more processor time, since their frames leave the caches.
At a sixteenth, 10 ms of round trip lost 23 % of the rate, at a quarter nothing."""
_WATCH_SECONDS = 0.5
_MESSAGE_BYTES_MAX = 1 << 32
"""gRPC stores the size of a message in 32 bits, so longer rows do not exist."""
FIRST_PREFETCH_BYTES = 1 << 19
"""200 streams that start together get their first batch after 0.7 s if each requests 32 MiB, after
0.4 s with this limit; 2 cores, 2026-11. A single stream is as fast after a tenth of a second.
"""


class RowStream:
    """The rows of a stream, received and checked in the background."""

    def __init__(
        self,
        remote: DatasetClient,
        request: StreamRequest,
        *,
        prefetch_bytes: int,
        counters: Counters,
    ) -> None:
        """Prepare a stream; no I/O before `start`.

        prefetch_bytes: buffer for rows that are requested and not yet consumed, at 2 bytes per
        token; at least two batches. A stream starts with less, and grows to the full size as
        batches are consumed.
        """
        self._remote = remote
        self._request = request
        self._counters = counters
        self._batch_rows = request.position.batch_size
        batch_bytes = 2 * request.spec.row_tokens * self._batch_rows
        self._room_batches = max(2, prefetch_bytes // batch_bytes)
        self._first_room_batches = max(2, min(prefetch_bytes, FIRST_PREFETCH_BYTES) // batch_bytes)
        # A long row is one frame, and only complete frames are visible.
        row_bytes = min(4 * request.spec.row_tokens, _MESSAGE_BYTES_MAX)
        self._frame_seconds = row_bytes // frame.BYTES_PER_SECOND_MIN
        self._first_frame_rows = frame.rows_per_frame(
            frame.FRAME_BYTES_FIRST, 2 * request.spec.row_tokens
        )
        self._failover = remote.failover(lambda: self._awaited_since)

        # Used only by the receiving thread.
        self._is_resuming = False
        self._requested_batch = 0

        # Each is changed by one thread, and read by the others without a lock: the consumer may be
        # interrupted anywhere, even by a signal handler that closes this stream. A waiting thread
        # sets its flag before its last check; it is notified only if the flag is set.
        self._queue: deque[RowBlock] = deque()
        self._first_row = 0  # of the first block in the queue: its first row that is not consumed
        self._calls: deque[Call] = deque()
        self._describe_calls: set[DescribeCall] = set()
        self._received_row = 0
        self._consumed_row = 0
        self._progress_at = 0.0
        self._silent_seconds = 0.0
        self._closed = False
        self._begun = False
        self._owner: weakref.ref[object] | None = None
        self._error: BaseException | None = None
        self._rows_awaited = False
        self._room_awaited = False
        self._awaited_since: float | None = None
        self._consumer_notifier, self._receiver_notifier = Notifier(), Notifier()
        self._end_notifier = Notifier()
        self.ended = True
        """Whether no thread is receiving."""

    def start(self, owner: object | None = None) -> None:
        """Like `RowSource.start`."""
        keep_freed_memory()
        self._supervisor = self._remote.begin_use()
        if owner is not None:
            self._owner = self._supervisor.watch(owner)
        self.ended = False
        self._supervisor.add(self)
        start_thread(self._run, "tokenfeed-receiver")

    def ready(self, row_count: int) -> bool:
        """Return whether `peek` would return this many rows at once."""
        return self._received_row - self._consumed_row >= row_count

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """Like `RowSource.peek`; each part comes from one frame."""
        if not self._has_answer(row_count):
            self._await_rows(row_count)
        if self._is_closed():
            return None
        if not self.ready(row_count):
            if self._error is not None:
                raise self._error
            return None
        first = self._first_row
        block = self._queue[0]
        left = len(block.tokens) - first
        if left >= row_count:
            return [block[first : first + row_count]]
        parts = [block[first:]]
        row_count -= left
        while row_count:
            # By index: the receiving thread may append meanwhile, which would break an iterator.
            parts.append(self._queue[len(parts)][:row_count])
            row_count -= len(parts[-1])
        return parts

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
            self._receiver_notifier.notify()

    def _has_answer(self, row_count: int) -> bool:
        return self.ready(row_count) or self.ended or self._is_closed()

    def _await_rows(self, row_count: int) -> None:
        began = self._awaited_since = time.monotonic()
        try:
            while not self._has_answer(row_count):
                self._rows_awaited = True
                if not self._has_answer(row_count):
                    self._consumer_notifier.wait(RECHECK_SECONDS)
                self._failover.require_in_time(self._frame_seconds)
        finally:
            self._awaited_since = None
        self._counters.wait_seconds += time.monotonic() - began

    def close(self) -> None:
        """Stop receiving and end the thread, within bounded time. May be called twice, from any
        thread and by a signal handler.
        """
        self._closed = True
        if self.ended:
            return
        self._consumer_notifier.notify()
        self._supervisor.wake()
        if not self._end_notifier.wait_until(lambda: self.ended, END_SECONDS):
            self._remote.abandon(self)

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: after a read timeout, or when the rows are not needed any more;
        for the supervisor.
        """
        if self._owner is not None and self._owner() is None:
            self._closed = True
        if self._is_closed():
            if not self._begun:
                self.ended = True  # its thread never ran, or will end at once
            self._consumer_notifier.notify()
            self._receiver_notifier.notify()
            return 0.0
        timeout_seconds = left_seconds = self._timeout_seconds()
        if self._calls:
            left_seconds -= now - self._progress_at
            if left_seconds <= 0:
                self._silent_seconds = timeout_seconds
        # The timeout may shrink meanwhile.
        return min(left_seconds, _WATCH_SECONDS)

    def cancel(self) -> None:
        """Cancel all open calls; for the supervisor."""
        for call in tuple(self._calls):
            call.cancel()
        for describe_call in tuple(self._describe_calls):
            describe_call.cancel()

    def _run(self) -> None:
        """The receiving thread."""
        self._begun = True
        try:
            self._failover.run(
                self._attempt,
                pause=partial(self._receiver_notifier.wait_until, self._is_closed),
                is_over=self._is_closed,
            )
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._error = detach_error(error)
        self.ended = True
        self._consumer_notifier.notify()
        self._end_notifier.notify()
        self._supervisor.wake()

    def _timeout_seconds(self) -> float:
        return self._failover.read_seconds + self._frame_seconds

    def _attempt(self, replica: Replica) -> None:
        """Receive all missing rows from one server.  Raises: TokenfeedError, the reason of a break,
        unless it was `close`.
        """
        received_before = self._received_row
        self._is_resuming = received_before > 0
        self._silent_seconds = 0.0
        timeout_seconds = self._timeout_seconds()
        with self._remote.connected(replica, timeout_seconds, self._describe_calls) as channel:
            failure: Exception | None = None
            try:
                self._receive(channel, self._remote.expected(timeout_seconds, self._describe_calls))
            except (RpcError, ValueError) as error:
                failure = self._failure(error, replica)
            finally:
                replica.has_served |= self._received_row > received_before
                self._drop_calls()
            # Outside the except block: gRPC's error is the call itself, and as the context of this
            # one it would be freed in the consumer's thread.
            if failure is not None:
                raise failure

    def _failure(self, error: Exception, replica: Replica) -> Exception | None:
        """Return the error that broke a call; None if it was `close`."""
        without_traceback(error)
        # A call on a channel that was closed meanwhile raises ValueError.
        if self._is_closed():
            return None
        if self._silent_seconds:
            return Unreachable(
                replica.address, f"read timeout: sent nothing for {self._silent_seconds:.1f} s"
            )
        return error_from_rpc(error, replica.address) if isinstance(error, RpcError) else error

    def _is_closed(self) -> bool:
        return self._closed or self._remote.closed

    def _receive(self, channel: Channel, expected: Expected) -> None:
        """Receive rows by consecutive calls, one of them requested ahead, until the end or until
        one breaks.
        """
        self._requested_batch = self._received_row // self._batch_rows
        stream = frame.Stream(
            self._request.spec, self._request.position, expected.identity, dict(expected.planes)
        )
        while True:
            self._send_ahead(channel, expected, wait=True)
            if not self._calls:
                return
            for message in self._calls[0]:
                rows = frame.decode(message).rows(stream, self._received_row)
                if self._received_row + len(rows) > self._requested_batch * self._batch_rows:
                    raise BadFrame("call", "the server sent more rows than were requested")
                self._counters.reconnects += self._is_resuming
                self._is_resuming = False
                now = time.monotonic()
                self._failover.record_progress(now - self._progress_at)
                self._progress_at = now
                self._queue.append(rows)
                self._received_row += len(rows)
                if self._rows_awaited:
                    self._rows_awaited = False
                    self._consumer_notifier.notify()
                self._send_ahead(channel, expected, wait=False)
            self._calls.popleft()
            if not self._calls and self._received_row < self._requested_batch * self._batch_rows:
                raise BadFrame("call", "the server ended it before all rows had arrived")

    def _send_ahead(self, channel: Channel, expected: Expected, *, wait: bool) -> None:
        """Send a request if no call is open, or if the open one is about to end, as far as there is
        room. Waits for room only if no call is open.  The very first call is sent alone.
        """
        while len(self._calls) < (2 if self._received_row and self._is_near_end() else 1):
            batches = min(self._room() // 2, self._request.end_batch - self._requested_batch)
            if batches == 0:
                return
            if wait and not self._calls:
                self._await_room(batches)
            if self._closed or not self._has_room(batches):
                return
            first_row = max(self._requested_batch * self._batch_rows, self._received_row)
            self._requested_batch += batches
            part = self._request.part(first_row, self._requested_batch)
            message = to_message(part, expected, self._remote.client_name)
            if not self._calls:
                self._progress_at = time.monotonic()
            self._calls.append(channel.get_batch(message))
            if self._closed:
                # The supervisor may have checked just before.
                self.cancel()

    def _is_near_end(self) -> bool:
        """Return whether little is left of the requested rows, at most one small frame of it."""
        left_rows = self._requested_batch * self._batch_rows - self._received_row
        room_rows = self._room() * self._batch_rows
        return left_rows <= max(room_rows // _ROOM_LEFT_SHARE, self._first_frame_rows)

    def _await_room(self, batches: int) -> None:
        while not (self._is_closed() or self._has_room(batches)):
            self._room_awaited = True
            if not (self._is_closed() or self._has_room(batches)):
                self._receiver_notifier.wait()

    def _room(self) -> int:
        """Return how many batches may be requested and not yet consumed.

        Grows as batches are consumed. Otherwise hundreds of slow trainers that start together would
        each request a full buffer from one server at once, and delay each other.
        """
        consumed_batches = self._consumed_row // self._batch_rows
        return min(self._room_batches, self._first_room_batches + consumed_batches)

    def _has_room(self, batches: int) -> bool:
        """Return whether this many more batches fit. Consuming the received rows always frees
        enough.
        """
        requested_row = (self._requested_batch + batches) * self._batch_rows
        return requested_row - self._consumed_row <= self._room() * self._batch_rows

    def _drop_calls(self) -> None:
        self.cancel()
        while self._calls:
            drain_events(self._calls.popleft())


class StreamClient(DatasetClient):
    """A dataset on servers, as feeds use it: with the rows of its streams."""

    def open_rows(
        self, request: StreamRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowStream:
        """Return the rows of a stream, which does not receive before `start`."""
        return RowStream(self, request, prefetch_bytes=prefetch_bytes, counters=counters)
