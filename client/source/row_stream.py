"""Rows in order, through failovers and reconnects.

One thread receives. It requests as many batches as fit into the buffer, sends the next request
before the current call ends, checks every frame and queues its rows. It always reads a call to its
end, so a paused trainer never blocks a server. After a break it requests exactly the rows after the
last one that arrived. The feed's supervisor cancels its calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import NamedTuple

from tokenfeed.errors import BadFrame, TokenfeedError, Unreachable
from tokenfeed.wire import frame, redacted_runs
from tokenfeed.wire.request import AnyRequest, Hints, RowsRequest, to_message

from ..runtime.counters import Counters
from ..runtime.threads import without_traceback
from ..transport.channel import Call, Channel, DescribeCall, RpcError, drain_events, error_from_rpc
from ..transport.replicas import Replica
from .background_rows import BackgroundRows
from .calls import Calls
from .datasets import Datasets
from .failover import Failover
from .plane_selection import require_valid

_WATCH_SECONDS = 0.5
_GOODBYE_SECONDS = 0.2
"""How long a server may take to hear that a feed has ended. `close` waits for it."""
_MESSAGE_BYTES_MAX = 1 << 32
"""gRPC stores the size of a message in 32 bits, so longer rows do not exist."""
FIRST_PREFETCH_BYTES = 1 << 19
"""200 streams that start together get their first batch after 0.7 s if each requests 32 MiB, after
0.4 s with this limit; 2 cores, 2026-11. A single stream is as fast after a tenth of a second.
"""


class _OpenCall(NamedTuple):
    """A call that is read, or requested ahead.

    frames: what they have in common.  base_row: the row of the stream from which its frames count.
    end_row: the row after its last one.  planes: kinds that its rows get.  may_lack: whether rows
    may lack a plane.
    """

    messages: Call
    frames: frame.Frames
    base_row: int
    end_row: int
    planes: tuple[int, ...]
    may_lack: bool


Connect = Callable[
    [Replica, AnyRequest, float, set[DescribeCall]], AbstractContextManager[tuple[Channel, Calls]]
]
"""Lends the connection to a server, with the calls for a request: `Servers.connected`."""


class RowStream(BackgroundRows):
    """The rows of a stream, received and checked in the background."""

    thread_name = "tokenfeed-receiver"

    def __init__(
        self,
        servers: Datasets,
        request: AnyRequest,
        *,
        connect: Connect,
        failover: Callable[[Callable[[], float | None]], Failover],
        hints: Hints,
        prefetch_bytes: int,
        counters: Counters,
    ) -> None:
        """Prepare a stream of some servers; no I/O before `start`.

        failover: returns a Failover over them, given when the consumer began to wait.  hints: what
        calls tell the people who look at a server.
        prefetch_bytes: buffer for rows that are requested and not yet consumed, at 2 bytes per
        token; at least two batches. A stream starts with less, and grows to the full size as
        batches are consumed.
        """
        super().__init__(servers, counters)
        self._request = request
        self._connect = connect
        self._own_hints = hints
        self._batch_rows = request.position.batch_size
        batch_bytes = 2 * request.stream.row_tokens * self._batch_rows
        self._room_batches = max(2, prefetch_bytes // batch_bytes)
        self._first_room_batches = max(2, min(prefetch_bytes, FIRST_PREFETCH_BYTES) // batch_bytes)
        # A long row is one frame, and only complete frames are visible.
        row_bytes = min(4 * request.stream.row_tokens, _MESSAGE_BYTES_MAX)
        self._frame_seconds = row_bytes // frame.BYTES_PER_SECOND_MIN
        self._failover = failover(lambda: self._awaited_since)

        # Used only by the receiving thread.
        self._is_resuming = False
        self._requested_row = 0

        self._calls: deque[_OpenCall] = deque()
        self._describe_calls: set[DescribeCall] = set()
        self._progress_at = 0.0
        self._silent_seconds = 0.0

    @property
    def capacity_rows(self) -> int:
        """How many rows may be requested and not yet consumed; grows at the start."""
        return self._room() * self._batch_rows

    def _check_wait(self) -> None:
        self._failover.require_in_time(self._frame_seconds)

    def _due_seconds(self, now: float) -> float:
        """Return when to cancel because of a read timeout."""
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
            call.messages.cancel()
        for describe_call in tuple(self._describe_calls):
            describe_call.cancel()

    def _bring(self) -> None:
        self._failover.run(
            self._attempt,
            pause=partial(self._thread_notifier.wait_until, self._is_closed),
            is_over=self._is_closed,
        )

    def _timeout_seconds(self) -> float:
        return self._failover.read_seconds + self._frame_seconds

    def _attempt(self, replica: Replica) -> None:
        """Receive all missing rows from one server.  Raises: TokenfeedError, the reason of a break,
        unless it was `close`.
        """
        received_before = self._received_row
        self._is_resuming = received_before > 0
        self._silent_seconds = 0.0
        with self._connect(
            replica, self._request, self._timeout_seconds(), self._describe_calls
        ) as (channel, calls):
            failure: Exception | None = None
            has_all = False
            try:
                self._receive(channel, calls)
                # The trainer has rows to take, and may hang until then.
                self._await_room(lambda: self._consumed_row == self._received_row)
                has_all = not self._closed
            except (RpcError, ValueError) as error:
                failure = self._failure(error, replica)
            finally:
                replica.has_served |= self._received_row > received_before
                self._drop_calls()
                if has_all or self._source.closed:
                    self._say_goodbye(channel, calls)
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

    def _receive(self, channel: Channel, calls: Calls) -> None:
        """Receive rows by consecutive calls, one of them requested ahead, until the end or until
        one breaks.
        """
        self._requested_row = self._received_row
        while True:
            self._send_ahead(channel, calls, wait=True)
            if not self._calls:
                return
            call = self._calls[0]
            for message in call.messages:
                rows = frame.decode(message).rows(call.frames, self._received_row - call.base_row)
                if call.planes:
                    require_valid(rows, may_lack=call.may_lack)
                    rows = redacted_runs.with_runs(rows.with_planes(call.planes))
                if self._received_row + len(rows) > call.end_row:
                    raise BadFrame("call", "the server sent more rows than were requested")
                if self._is_resuming:
                    self._counters.count_reconnect(self._failover.broken_by)
                    self._is_resuming = False
                self._counters.count_frame(len(message), channel.target)
                now = time.monotonic()
                self._failover.record_progress(now - self._progress_at)
                self._progress_at = now
                self._add(rows)
                self._send_ahead(channel, calls, wait=False)
            self._calls.popleft()
            if self._received_row < call.end_row:
                raise BadFrame("call", "the server ended it before all rows had arrived")

    def _send_ahead(self, channel: Channel, calls: Calls, *, wait: bool) -> None:
        """Send requests until two calls are open, as far as there is room. Waits for room only if
        no call is open.  The very first call is sent alone.
        """
        while len(self._calls) < (2 if self._received_row else 1):
            batch = self._requested_row // self._batch_rows
            batches = min(self._room() // 2, self._request.end_batch - batch)
            if batches == 0:
                return
            if wait and not self._calls:
                self._await_room(partial(self._has_room, batches))
            if self._closed or not self._has_room(batches):
                return
            end_row = (batch + batches) * self._batch_rows
            part, expected, planes = calls.part(self._requested_row, end_row)
            frames = frame.Frames(
                part.stream.row_tokens, part.position, expected.identity, dict(expected.planes)
            )
            base_row = self._requested_row - part.first_row
            self._requested_row += part.row_count
            message = to_message(part, expected, self._hints())
            if not self._calls:
                self._progress_at = time.monotonic()
            may_lack = len(part.stream.sources) > 1
            sent, end_row = channel.get_batch(message), self._requested_row
            self._calls.append(_OpenCall(sent, frames, base_row, end_row, planes, may_lack))
            if self._closed:
                # The supervisor may have checked just before.
                self.cancel()

    def _hints(self) -> Hints:
        return self._own_hints._replace(
            trainer_sample=self._request.position.sample_of(self._consumed_row)
        )

    def _say_goodbye(self, channel: Channel, calls: Calls) -> None:
        """Tell a server that the trainer has all rows that it wants."""
        if isinstance(self._request, RowsRequest):
            return  # which no server lists
        hints = self._hints()
        if hints.is_tool or not self._received_row:
            return
        part, expected, _ = calls.part(self._consumed_row, self._consumed_row)
        message = to_message(part, expected, hints._replace(is_last=True))
        with suppress(RpcError, ValueError, TokenfeedError):
            call = channel.get_batch(message, _GOODBYE_SECONDS)
            for _ in call:
                pass
            drain_events(call)

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
        requested_row = (self._requested_row // self._batch_rows + batches) * self._batch_rows
        return requested_row - self._consumed_row <= self._room() * self._batch_rows

    def _drop_calls(self) -> None:
        self.cancel()
        while self._calls:
            drain_events(self._calls.popleft().messages)
