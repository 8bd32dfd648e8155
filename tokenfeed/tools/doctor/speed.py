"""How fast rows arrive from a server, and what limits them.

While rows are read, new connections and small calls show whether the line is full or the server is
busy: the kernel of the server accepts a connection whatever its process does, so one that takes
long has waited in a queue of the line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from tokenfeed.client.runtime.threads import Outcome, start_thread, without_traceback
from tokenfeed.client.source.calls import Calls
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.transport.channel import Channel, RpcError, drain_events, error_from_rpc
from tokenfeed.errors import TokenfeedError, Unreachable
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import Hints, Request, to_message

from .findings import Finding
from .network import Place, connect_seconds

_CONTEXT_LENGTH = 2048
_BATCH_ROWS = 32
_BATCHES = 1 << 30
"""More than a measurement reads."""
_HINTS = Hints("tokenfeed doctor", is_tool=True)
_PAUSE_SECONDS = 0.05
"""Between two looks at line and server."""
_QUEUE_SECONDS_MIN = 0.001
_QUEUE_SHARE_MIN = 0.3
"""A connection that takes these seconds longer than without load, and this share of the round trip
longer, has waited in a queue. Behind 50 Mbit/s (tbf) it took 6 to 30 ms longer than 0.04 ms; on the
loopback 0.2 ms, with all of a processor in use; 2 shared cores, 2026-11."""
_PROCESSOR_SHARE = 0.8
"""Of a core: above it, this process has no time left to receive faster."""
_GAIN = 1.5
"""Two connections that are together this many times as fast as one show that the line is not full.
"""
_BUSY_SECONDS = 0.05
"""A small call that takes this long, and a connection that does not, has waited in the server."""


class Reader:
    """A stream of random windows of a dataset, read by a thread of its own as fast as it arrives.
    The dataset has at least 2 tokens in a file.
    """

    def __init__(self, channel: Channel, described: pb.DescribeResponse, name: str) -> None:
        """Prepare to read the dataset of this name; sends nothing before `start`."""
        self._channel = channel
        self._dataset = next(each for each in described.datasets if each.name == name)
        self._limits = described.limits
        self._done: Outcome[bool] = Outcome()
        self._cancelled = False
        self._first_tokens = self._first_bytes = 0
        self._tokens = self._bytes = 0
        self._began = self._last_at = 0.0
        self.first_at: float | None = None
        """When the first frame arrived, of time.monotonic()."""
        self.ended = False
        """Whether no more rows come."""

    def start(self, batches: int = _BATCHES) -> None:
        """Begin to read.  Raises: TokenfeedError if the credentials cannot be used."""
        request = self._request(batches)
        calls = Calls(request, [self._dataset])
        part, expected, _ = calls.part(0, request.position.batch_size * batches)
        planes = dict(expected.planes)
        frames = frame.Frames(part.stream.row_tokens, part.position, expected.identity, planes)
        self._began = time.monotonic()
        self._call = self._channel.get_batch(to_message(part, expected, _HINTS))
        run = partial(self._done.run, partial(self._receive, frames))
        start_thread(run, "tokenfeed-doctor-reader")

    def cancel(self) -> None:
        """End the stream; what it raises then is no error."""
        self._cancelled = True
        self._call.cancel()

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the end of the stream, and cancel it after a timeout.  Raises: TokenfeedError
        if it ended by an error, or if no row has arrived.
        """
        if self._done.wait_for(timeout_seconds) is None:
            self.cancel()
            self._done.wait_for(timeout_seconds)
        if self.first_at is None:
            problem = f"DEADLINE_EXCEEDED: no rows within {timeout_seconds:g} s"
            raise Unreachable(self._channel.target, problem)

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens of x and bytes of messages per second: from the first frame on, if there is a
        second one.
        """
        if self.first_at is not None and self._last_at > self.first_at:
            seconds = self._last_at - self.first_at
            tokens, size = self._tokens - self._first_tokens, self._bytes - self._first_bytes
        else:
            seconds, tokens, size = self._last_at - self._began, self._tokens, self._bytes
        return (tokens / seconds, size / seconds) if seconds > 0 else (0.0, 0.0)

    @property
    def first_seconds(self) -> float:
        """How long the first frame took; 0.0 if there is none."""
        return (self.first_at or self._began) - self._began

    def _request(self, batches: int) -> Request:
        context_length = min(_CONTEXT_LENGTH, self._dataset.longest_file_tokens - 1)
        if self._dataset.row_tokens:
            context_length = self._dataset.row_tokens - 1
        row_bytes = (context_length + 1) * max(1, self._dataset.token_bytes)
        # 0 is an unknown limit.
        rows_max = self._limits.batch_bytes_max // row_bytes or _BATCH_ROWS
        order = orders.latest("random")
        stream = Stream.of_dataset(self._dataset.name, order, 0, context_length)
        position = Position(0, min(_BATCH_ROWS, rows_max))
        request = Request(stream, position, num_batches=batches)
        return PlaneSelection(loss_mask=False).request(request, (self._dataset,))

    def _receive(self, frames: frame.Frames) -> bool:
        """Take all frames, in the thread.  Returns: True.  Raises: TokenfeedError."""
        failure: TokenfeedError | None = None
        row = 0
        try:
            for message in self._call:
                rows = frame.decode(message).rows(frames, row)
                row += len(rows)
                self._count(len(rows) * (frames.row_tokens - 1), len(message))
        except RpcError as error:
            if not self._cancelled:
                failure = error_from_rpc(without_traceback(error), self._channel.target)
        finally:
            self._call.cancel()
            drain_events(self._call)
            self.ended = True
        # Outside the except block: gRPC's error is the call itself.
        if failure is not None:
            raise failure
        return True

    def _count(self, tokens: int, size: int) -> None:
        self._last_at = time.monotonic()
        self._tokens += tokens
        self._bytes += size
        if self.first_at is None:
            self._first_tokens, self._first_bytes = tokens, size
            self.first_at = self._last_at


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen while rows were read from a server.

    tokens_per_second, bytes_per_second: tokens of x, and bytes of messages.  first_seconds: until
    the first frame.  connect_seconds, call_seconds: what new connections and small calls took in
    the median, from the first frame on; None if there were none.  processor_share: of one core,
    used by this process.
    """

    tokens_per_second: float
    bytes_per_second: float
    first_seconds: float
    connect_seconds: float | None
    call_seconds: float | None
    processor_share: float

    @property
    def mbit_per_second(self) -> float:
        """Of messages; with all headers the line carries some percent more."""
        return 8e-6 * self.bytes_per_second


def load(
    readers: Sequence[Reader],
    prober: Channel,
    place: Place,
    *,
    seconds: float,
    timeout_seconds: float,
) -> Load:
    """Read with all readers at once, for some seconds after the first frame.

    prober: another connection to the server, for small calls.  place: where it listens.
    timeout_seconds: for the first frame, and for each look.  Raises: TokenfeedError.
    """
    began, processor_began = time.monotonic(), time.process_time()
    for reader in readers:
        reader.start()
    try:
        connects, calls = _watch(readers, prober, place, seconds, timeout_seconds)
    finally:
        for reader in readers:
            reader.cancel()
    elapsed, used = time.monotonic() - began, time.process_time() - processor_began
    for reader in readers:
        reader.wait(timeout_seconds)
    rates = [reader.rates for reader in readers]
    return Load(
        sum(tokens for tokens, _ in rates),
        sum(size for _, size in rates),
        max(reader.first_seconds for reader in readers),
        median(connects) if connects else None,
        median(calls) if calls else None,
        used / elapsed,
    )


def _watch(
    readers: Sequence[Reader],
    prober: Channel,
    place: Place,
    seconds: float,
    timeout_seconds: float,
) -> tuple[list[float], list[float]]:
    """Wait until the readers have read for long enough, and return what connections and small
    calls took meanwhile.
    """
    connects: list[float] = []
    calls: list[float] = []
    end = time.monotonic() + timeout_seconds
    has_begun = False
    while (now := time.monotonic()) < end and not all(reader.ended for reader in readers):
        if not has_begun and all(reader.first_at for reader in readers):
            has_begun, end = True, now + seconds
        if has_begun:
            try:
                connects.append(connect_seconds(place, timeout_seconds))
                began = time.perf_counter()
                prober.describe(pb.DescribeRequest(), timeout_seconds).result()
                calls.append(time.perf_counter() - began)
            except (OSError, TokenfeedError):
                # The readers have the same problem, or it was no problem.
                pass
        time.sleep(min(_PAUSE_SECONDS, seconds / 10))
    return connects, calls


def slowness(
    server: str, alone: Load, together: Load, idle_seconds: float, needed: float
) -> Finding:
    """Return why rows arrive more slowly than needed, as far as it shows.

    alone, together: one stream, and two on connections of their own.  idle_seconds: of a new
    connection, without load.  needed: tokens per second.
    """
    kind, limit, seen, cure = _limit(alone, together, idle_seconds)
    return Finding(
        kind,
        server,
        f"{alone.tokens_per_second / 1e6:.1f} million tokens/s arrive, less than the "
        f"{needed / 1e6:,.1f} million asked for: {limit}",
        f"{alone.mbit_per_second:.0f} Mbit/s by one connection, {together.mbit_per_second:.0f} by "
        f"two; {seen}",
        f"{cure}. If the run needs less, pass --tokens-per-second",
    )


def _limit(alone: Load, together: Load, idle_seconds: float) -> tuple[str, str, str, str]:
    """Return the kind, the limit, what shows it, and the cure."""
    connect_seconds = alone.connect_seconds or 0.0
    call_seconds = alone.call_seconds or 0.0
    queued_seconds = connect_seconds - idle_seconds
    waits = (
        f"while rows arrive, a connection takes {_ms(connect_seconds)} (idle "
        f"{_ms(idle_seconds)}), a small call {_ms(call_seconds)}"
    )
    if alone.processor_share > _PROCESSOR_SHARE:
        share = f"this process used {100 * alone.processor_share:.0f} % of a core"
        return "slow-trainer", "this machine's processor is the limit", share, "free a core"
    gains = together.bytes_per_second > _GAIN * alone.bytes_per_second
    if not gains and queued_seconds > max(_QUEUE_SECONDS_MIN, _QUEUE_SHARE_MIN * idle_seconds):
        line = f"the line is the limit, with {together.mbit_per_second:.0f} Mbit/s"
        return "slow-line", line, waits, "use a faster line, or a server nearer to the trainers"
    if gains:
        one = f"one connection is the limit, with a round trip of {_ms(idle_seconds)}"
        cure = "raise net.ipv4.tcp_rmem and tcp_wmem (their last number) on both machines"
        return "slow-connection", one, waits, cure
    if call_seconds - connect_seconds > _BUSY_SECONDS:
        cure = "look at the server's load and disks, or add a server"
        return "slow-server", "the server is the limit", waits, cure
    cure = "run doctor on the server's machine: if it is as slow there, it is the server"
    return "slow", "the line, or the server's disk", waits, cure


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
