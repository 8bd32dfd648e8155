"""Frames in order, whatever happens to the server. Knows nothing of torch.

One thread receives: it asks for as many batches as there is room for, sends the next request before
the call ends, checks every frame and queues its rows. It never stops reading a call for lack of
room, so no server ever holds back what a paused trainer does not take. After any break it asks for
exactly what comes after the last row that arrived.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

import grpc
import numpy as np
import numpy.typing as npt

from tokenfeed import frame
from tokenfeed.errors import (
    BadFrame,
    InvalidRequest,
    SamplesExhausted,
    ServerAway,
    Unreachable,
)
from tokenfeed.identity import stream_identity
from tokenfeed.orders import Order
from tokenfeed.plan import SEED_END
from tokenfeed.position import SAMPLE_END, Position, require_range
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .channel import Call, Channel, final_error, retry_after_seconds

_LOG = logging.getLogger("tokenfeed.client")

Rows = npt.NDArray[np.unsignedinteger]

PREFETCH_BYTES = 32 << 20
"""Two calls of 16 frames: one being read, one sent ahead. That ran as fast as a stream without
end.
"""

_BACKOFF_SECONDS_FIRST = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_PAUSE_SECONDS_MAX = 30.0
_DESCRIBE_SECONDS = 5.0
_LOG_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What is wanted: one rank's rows of one stream. What exists is valid.

    dataset: "" is the only one served.  seed: in [0, 2^64).  context_length: T, at least 1.
    num_batches: at least 0; None is without end.
    Raises: InvalidRequest, before anything is sent: a negative number would travel as a huge one.
    """

    dataset: str
    order: Order
    seed: int
    context_length: int
    position: Position
    num_batches: int | None

    def __post_init__(self) -> None:
        """Check every range."""
        require_range("context_length", self.context_length, 1, SAMPLE_END)
        require_range("seed", self.seed, 0, SEED_END)
        if self.num_batches is not None:
            require_range("num_batches", self.num_batches, 0, SAMPLE_END)
        left = self.position.batches_left
        if left < (1 if self.num_batches is None else self.num_batches):
            raise SamplesExhausted(
                "num_batches", f"only {left} batches from the first sample on stay below 2^63"
            )

    @property
    def end_batch(self) -> int:
        """Batches of the stream: those asked for, or all that there are below sample 2^63."""
        return self.position.batches_left if self.num_batches is None else self.num_batches

    def message(self, first_row: int, end_batch: int, identity: bytes) -> pb.GetBatchRequest:
        """Return the request for stream rows from first_row on, up to the end of batch end_batch -
        1.
        """
        batch, row = divmod(first_row, self.position.batch_size)
        return pb.GetBatchRequest(
            batch_size=self.position.batch_size,
            context_length=self.context_length,
            seed=self.seed,
            dataset=self.dataset,
            order=self.order.NAME,
            first_sample=self.position.batch_first_sample(batch),
            first_row=row,
            num_batches=end_batch - batch,
            rank=self.position.rank,
            world_size=self.position.world_size,
            expected_identity=identity,
        )


class FrameStream:
    """The rows of a stream, received in the background and checked."""

    def __init__(
        self,
        target: str,
        request: StreamRequest,
        *,
        prefetch_bytes: int,
        deadline_seconds: float | None,
    ) -> None:
        """Prepare a stream; no I/O before `start`.

        prefetch_bytes: room for rows asked for and not yet taken, on the assumption of 2 bytes a
        token; at least two batches.
        deadline_seconds: how long to wait for a server that is away; None is for ever.
        """
        self._channel = Channel(target)
        self._request = request
        self._batch_rows = request.position.batch_size
        batch_bytes = 2 * (request.context_length + 1) * self._batch_rows
        self._room_batches = max(2, prefetch_bytes // batch_bytes)
        self._deadline_seconds = deadline_seconds
        self._identity: bytes | None = None
        self._thread = threading.Thread(target=self._run, name="tokenfeed-receiver", daemon=True)

        # Used by the receiving thread alone.
        self._received_row = 0
        self._requested_batch = 0
        self._call_batches = 1

        # Guarded by the condition, which is notified whenever one of them changes.
        self._changed = threading.Condition()
        self._queue: deque[Rows] = deque()
        self._queued_rows = 0
        self._taken_row = 0
        self._calls: deque[Call] = deque()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def peek(self, row_count: int) -> list[Rows] | None:
        """Return the next rows, in as many parts as frames brought them; None at the end. Waits.

        Each part: uint16 or uint32 [n, T + 1], read-only; row_count rows in all, at most a batch.
        They stay the next ones until `advance`.
        Raises: the error that ended the stream, once too few rows are left for a batch.
        """
        with self._changed:
            while not (self._queued_rows >= row_count or self._ended or self._closed):
                self._changed.wait()
            if self._closed:
                return None
            if self._queued_rows < row_count:
                if self._error is not None:
                    raise self._error
                return None
            parts = []
            for rows in self._queue:
                parts.append(rows[:row_count])
                row_count -= len(parts[-1])
                if row_count == 0:
                    break
            return parts

    def advance(self, row_count: int) -> None:
        """Leave behind rows that `peek` has returned, which makes room for others."""
        with self._changed:
            self._taken_row += row_count
            self._queued_rows -= row_count
            while row_count:
                rows = self._queue.popleft()
                if len(rows) > row_count:
                    self._queue.appendleft(rows[row_count:])
                row_count -= min(len(rows), row_count)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop receiving and end the thread. May be called twice, and from any thread."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        # Cancels whatever call the thread is in, also one that nobody answers.
        self._channel.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """The receiving thread."""
        error: BaseException | None = None
        try:
            self._receive_to_the_end()
        except BaseException as caught:  # noqa: BLE001 - handed to the consumer, whatever it is
            error = caught
        with self._changed:
            self._ended = True
            self._error = error
            self._changed.notify_all()

    def _receive_to_the_end(self) -> None:
        """Receive all rows, from as many attempts as it takes.  Raises: what no further attempt
        would heal.
        """
        retry = _Retry(self._channel.target, self._deadline_seconds)
        while not self._closed and self._received_row < self._request.end_batch * self._batch_rows:
            row_before = self._received_row
            try:
                self._receive(self._known_identity())
                continue
            except grpc.RpcError as error:
                if self._closed:
                    return
                if final := final_error(error):
                    raise final from None
                reason, pause_seconds = (
                    f"{error.code().name}: {error.details()}",
                    retry_after_seconds(error),
                )
            except ServerAway as error:
                reason, pause_seconds = str(error), None
            finally:
                self._drop_calls()
            if self._received_row > row_before:
                retry = _Retry(self._channel.target, self._deadline_seconds)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, retry.pause(reason, pause_seconds))

    def _known_identity(self) -> bytes:
        """Return the stream's identity, derived from the server's fingerprint and our own request;
        asks only the first time.
        """
        if self._identity is None:
            request = self._request
            described = self._channel.describe(
                pb.DescribeRequest(dataset=request.dataset), _DESCRIBE_SECONDS
            )
            if len(described.datasets) != 1:
                names = ", ".join(dataset.name for dataset in described.datasets)
                raise InvalidRequest("dataset", f"has to name one of those served: {names}")
            fingerprint = described.datasets[0].fingerprint
            self._identity = stream_identity(
                request.order, request.seed, request.context_length, fingerprint
            )
        return self._identity

    def _receive(self, identity: bytes) -> None:
        """Receive rows with calls that follow each other, one sent ahead, until the end or until
        one of them breaks.
        """
        self._requested_batch = self._received_row // self._batch_rows
        while True:
            self._send_ahead(identity, wait=True)
            if not self._calls:
                return
            for message in self._calls[0]:
                rows = frame.decode(message).rows(
                    identity,
                    self._request.context_length,
                    self._request.position,
                    self._received_row,
                )
                self._received_row += len(rows)
                if self._received_row > self._requested_batch * self._batch_rows:
                    raise BadFrame("call", "brought more rows than were asked for")
                with self._changed:
                    self._queue.append(rows)
                    self._queued_rows += len(rows)
                    self._changed.notify_all()
                self._send_ahead(identity, wait=False)
            with self._changed:
                self._calls.popleft()
            if not self._calls and self._received_row < self._requested_batch * self._batch_rows:
                raise BadFrame("call", "ended before all its rows had arrived")

    def _send_ahead(self, identity: bytes, *, wait: bool) -> None:
        """Send requests until two calls are under way, as far as there is room; waits for room only
        if there is no call at all.
        """
        while len(self._calls) < 2:
            batches = min(self._call_batches, self._request.end_batch - self._requested_batch)
            if batches == 0:
                return
            with self._changed:
                while wait and not (self._calls or self._closed or self._has_room(batches)):
                    self._changed.wait()
                if self._closed or not self._has_room(batches):
                    return
                first_row = max(self._requested_batch * self._batch_rows, self._received_row)
                self._requested_batch += batches
                self._calls.append(
                    self._channel.get_batch(
                        self._request.message(first_row, self._requested_batch, identity)
                    )
                )
            # The first calls are short, so that the first batch is not late.
            self._call_batches = min(2 * self._call_batches, self._room_batches // 2)

    def _has_room(self, batches: int) -> bool:
        """Say whether so many more batches fit. Never needs more than is freed by taking what was
        received.
        """
        asked_rows = (self._requested_batch + batches) * self._batch_rows - self._taken_row
        return asked_rows <= self._room_batches * self._batch_rows

    def _drop_calls(self) -> None:
        with self._changed:
            for call in self._calls:
                call.cancel()
            self._calls.clear()


class _Retry:
    """How long to wait for a server that is away, and when to give up."""

    def __init__(self, target: str, deadline_seconds: float | None) -> None:
        self._target = target
        self._deadline_seconds = deadline_seconds
        self._away_since: float | None = None
        self._logged = float("-inf")
        self._pause_seconds = _BACKOFF_SECONDS_FIRST

    def pause(self, reason: str, asked_seconds: float | None) -> float:
        """Return how many seconds to wait before the next attempt.  Raises: Unreachable past the
        deadline.
        """
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away_seconds = now - self._away_since
        if self._deadline_seconds is not None and away_seconds >= self._deadline_seconds:
            raise Unreachable(
                self._target,
                f"no answer for {away_seconds:.0f} s ({reason}). "
                "Is the server up, and the address right?",
            )
        if now - self._logged >= _LOG_AGAIN_SECONDS:
            self._logged = now
            _LOG.warning("waiting for server target=%s reason=%s", self._target, reason)
        asked_seconds = self._pause_seconds if asked_seconds is None else asked_seconds
        pause_seconds = min(asked_seconds, _PAUSE_SECONDS_MAX)
        self._pause_seconds = min(2 * self._pause_seconds, _BACKOFF_SECONDS_MAX)
        return pause_seconds
