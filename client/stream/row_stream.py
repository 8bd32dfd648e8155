"""Rows in order, whatever happens to the server.

One thread receives: it asks for as many batches as there is room for, sends the next request before
the call ends, checks every frame and queues its rows. It never stops reading a call for lack of
room, so no server ever holds back what a paused trainer does not take. After any break it asks for
exactly what comes after the last row that arrived. The feed's supervisor cancels its calls.
"""

from __future__ import annotations

import time
import weakref
from collections import deque

from tokenfeed.errors import BadFrame, Unreachable
from tokenfeed.wire import frame
from tokenfeed.wire.request import Expected, StreamRequest, to_message
from tokenfeed.wire.row_block import RowBlock

from ..runtime.malloc import keep_freed_memory
from ..runtime.notifier import RECHECK_SECONDS, Notifier
from ..runtime.supervisor import END_SECONDS
from ..runtime.threads import handed_over, start_thread, without_frames
from ..stats import Counters
from ..transport.channel import Call, Channel, DescribeCall, RpcError, drain_events, error_from_rpc
from ..transport.replicas import Replica
from .dataset_client import DatasetClient

PREFETCH_BYTES = 32 << 20
"""Two calls of 16 frames: one being read, one sent ahead. That ran as fast as a stream without
end.
"""
_WATCH_SECONDS = 0.5
_MESSAGE_BYTES_MAX = 1 << 32
"""gRPC writes the size of a message as 32 bits, so a longer row never comes."""
FIRST_PREFETCH_BYTES = 1 << 19
"""200 streams that begin together have their first batch after 0.7 s if each has 32 MiB under way,
after 0.4 s so; 2 cores, 2026-11. One alone is as fast from the first tenth of a second.
"""


class RowStream:
    """The rows of a stream, received in the background and checked."""

    def __init__(
        self,
        remote: DatasetClient,
        request: StreamRequest,
        *,
        prefetch_bytes: int,
        counters: Counters,
    ) -> None:
        """Prepare a stream; no I/O before `start`.

        prefetch_bytes: room for rows asked for and not yet taken, on the assumption of 2 bytes a
        token; at least two batches. A stream begins with less, and has it all once it has taken as
        much.
        """
        self._remote = remote
        self._request = request
        self._counters = counters
        self._batch_rows = request.position.batch_size
        batch_bytes = 2 * request.spec.row_tokens * self._batch_rows
        self._room_batches = max(2, prefetch_bytes // batch_bytes)
        self._first_room_batches = max(2, min(prefetch_bytes, FIRST_PREFETCH_BYTES) // batch_bytes)
        # A long row is one frame, of which nothing is seen before all of it is there.
        row_bytes = min(4 * request.spec.row_tokens, _MESSAGE_BYTES_MAX)
        self._frame_seconds = row_bytes // frame.BYTES_PER_SECOND_MIN
        self._failover = remote.failover(lambda: self._awaited_since)

        # Used by the receiving thread alone.
        self._taken_up = False
        self._requested_batch = 0

        # Each changed by one thread alone, and read by the others without a lock: the consumer may
        # be interrupted anywhere, also by a signal handler that closes this stream. Who waits says
        # so before it looks for the last time, and only then is its bell rung.
        self._queue: deque[RowBlock] = deque()
        self._first_row = 0  # of the first block in the queue, that is not left behind
        self._calls: deque[Call] = deque()
        self._asked: set[DescribeCall] = set()
        self._received_row = 0
        self._taken_row = 0
        self._moved = 0.0
        self._silent_seconds = 0.0
        self._closed = False
        self._begun = False
        self._owner: weakref.ref[object] | None = None
        self._error: BaseException | None = None
        self._rows_awaited = False
        self._room_awaited = False
        self._awaited_since: float | None = None
        self._consumer_notifier, self._receiver_notifier, self._end_notifier = (
            Notifier(),
            Notifier(),
            Notifier(),
        )
        self.ended = True
        """Whether no thread receives."""

    def start(self, owner: object | None = None) -> None:
        """Begin to receive, until closed, or until owner is let go of.  Raises: RuntimeError if
        there can be no more threads.
        """
        keep_freed_memory()
        self._supervisor = self._remote.begin_use()
        if owner is not None:
            self._owner = self._supervisor.watch(owner)
        self.ended = False
        self._supervisor.add(self)
        start_thread(self._run, "tokenfeed-receiver")

    def ready(self, row_count: int) -> bool:
        """Say whether `peek` would return at once with so many rows."""
        return self._received_row - self._taken_row >= row_count

    def peek(self, row_count: int) -> list[RowBlock] | None:
        """As `RowSource.peek`; the parts are those that frames brought."""
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
            # By index: the receiving thread may append meanwhile, which ends an iteration.
            parts.append(self._queue[len(parts)][:row_count])
            row_count -= len(parts[-1])
        return parts

    def consume(self, row_count: int) -> None:
        """Leave behind rows that `peek` has returned, which makes room for others."""
        first = self._first_row + row_count
        while self._queue and first >= (size := len(self._queue[0].tokens)):
            self._queue.popleft()
            first -= size
        self._first_row = first
        self._taken_row += row_count
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
        """Stop receiving and end the thread; waits, but not for ever. May be called twice, from any
        thread, and by a signal handler.
        """
        self._closed = True
        if self.ended:
            return
        self._consumer_notifier.notify()
        self._supervisor.wake()
        if not self._end_notifier.wait_until(lambda: self.ended, END_SECONDS):
            self._remote.leave_behind(self)

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: once calls have brought nothing for too long, or nobody wants
        them; for the supervisor.
        """
        if self._owner is not None and self._owner() is None:
            self._closed = True
        if self._is_closed():
            if not self._begun:
                self.ended = True  # its thread never began, or finds that it is over
            self._consumer_notifier.notify()
            self._receiver_notifier.notify()
            return 0.0
        patience_seconds = left_seconds = self._patience_seconds()
        if self._calls:
            left_seconds -= now - self._moved
            if left_seconds <= 0:
                self._silent_seconds = patience_seconds
        # Patience may shrink meanwhile.
        return min(left_seconds, _WATCH_SECONDS)

    def cancel(self) -> None:
        """Cancel all that is under way; for the supervisor."""
        for call in tuple(self._calls):
            call.cancel()
        for question in tuple(self._asked):
            question.cancel()

    def _run(self) -> None:
        """The receiving thread."""
        self._begun = True
        try:
            self._failover.run(self._attempt, pause=self._pause, is_over=self._is_closed)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, whatever it is
            self._error = handed_over(error)
        self.ended = True
        self._consumer_notifier.notify()
        self._end_notifier.notify()
        self._supervisor.wake()

    def _patience_seconds(self) -> float:
        return self._failover.read_seconds + self._frame_seconds

    def _attempt(self, replica: Replica) -> None:
        """Receive all rows that are still missing from one server.  Raises: TokenfeedError, what
        broke it, unless that was `close`.
        """
        received_before = self._received_row
        self._taken_up = received_before > 0
        self._silent_seconds = 0.0
        patience_seconds = self._patience_seconds()
        with self._remote.connected(replica, patience_seconds, self._asked) as channel:
            failure: Exception | None = None
            try:
                self._receive(channel, self._remote.expected(patience_seconds, self._asked))
            except (RpcError, ValueError) as error:
                failure = self._failure(error, replica)
            finally:
                replica.has_served |= self._received_row > received_before
                self._drop_calls()
            # Not while gRPC's own error is handled, which is the call itself: it must not travel
            # to the consumer's thread, and be let go of there.
            if failure is not None:
                raise failure

    def _failure(self, error: Exception, replica: Replica) -> Exception | None:
        """Return what broke a call; None if that was `close`."""
        without_frames(error)
        # A call on a channel that was closed meanwhile is a ValueError.
        if self._is_closed():
            return None
        if self._silent_seconds:
            return Unreachable(replica.address, f"sent nothing for {self._silent_seconds:.1f} s")
        return error_from_rpc(error, replica.address) if isinstance(error, RpcError) else error

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_closed() and (left := end - time.monotonic()) > 0:
            self._receiver_notifier.wait(left)

    def _is_closed(self) -> bool:
        return self._closed or self._remote.closed

    def _receive(self, channel: Channel, expected: Expected) -> None:
        """Receive rows with calls that follow each other, one sent ahead, until the end or until
        one of them breaks.
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
                    raise BadFrame("call", "brought more rows than were asked for")
                self._counters.reconnects += self._taken_up
                self._taken_up = False
                now = time.monotonic()
                self._failover.record_progress(now - self._moved)
                self._moved = now
                self._queue.append(rows)
                self._received_row += len(rows)
                if self._rows_awaited:
                    self._rows_awaited = False
                    self._consumer_notifier.notify()
                self._send_ahead(channel, expected, wait=False)
            self._calls.popleft()
            if not self._calls and self._received_row < self._requested_batch * self._batch_rows:
                raise BadFrame("call", "ended before all its rows had arrived")

    def _send_ahead(self, channel: Channel, expected: Expected, *, wait: bool) -> None:
        """Send requests until two calls are under way, as far as there is room; waits for room only
        if there is no call at all.  The very first call goes alone.
        """
        while len(self._calls) < (2 if self._received_row else 1):
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
                self._moved = time.monotonic()
            self._calls.append(channel.get_batch(message))
            if self._closed:
                # The supervisor may have looked just before.
                self.cancel()

    def _await_room(self, batches: int) -> None:
        while not (self._is_closed() or self._has_room(batches)):
            self._room_awaited = True
            if not (self._is_closed() or self._has_room(batches)):
                self._receiver_notifier.wait()

    def _room(self) -> int:
        """Return how many batches may be asked for and not yet taken.

        It grows with what was taken: hundreds of slow trainers that begin together would otherwise
        ask one server for all their room at once, and wait for each other's.
        """
        taken_batches = self._taken_row // self._batch_rows
        return min(self._room_batches, self._first_room_batches + taken_batches)

    def _has_room(self, batches: int) -> bool:
        """Say whether so many more batches fit. Never needs more than is freed by taking what was
        received.
        """
        asked_rows = (self._requested_batch + batches) * self._batch_rows - self._taken_row
        return asked_rows <= self._room() * self._batch_rows

    def _drop_calls(self) -> None:
        self.cancel()
        while self._calls:
            drain_events(self._calls.popleft())


class StreamClient(DatasetClient):
    """A dataset on servers, and the rows of its streams as they send them."""

    def open_rows(
        self, request: StreamRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowStream:
        """Return the rows of a stream, which has not begun to receive."""
        return RowStream(self, request, prefetch_bytes=prefetch_bytes, counters=counters)
