"""How fast rows arrive from a server, and what limits them.

While rows are read, new connections and small calls show whether the line is full or the server is
busy: the kernel of the server accepts a connection whatever its process does, so one that takes
long has waited in a queue of the line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median

from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.runtime.threads import Outcome, start_thread
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.channel import Channel
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import TokenfeedError
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request

from .address import Server
from .findings import Finding
from .network import Place, connect_seconds

_CONTEXT_LENGTH = 2048
_BATCH_ROWS = 32
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
    """Random windows of a dataset, received as a feed receives them and thrown away. The dataset
    has at least 2 tokens in a file.
    """

    def __init__(
        self,
        server: Server,
        credentials: Credentials,
        described: pb.DescribeResponse,
        name: str,
        timeout_seconds: float,
        batches: int = 1 << 30,
    ) -> None:
        """Prepare to read; no I/O before `read`.

        described: the answer of the server.  name: that of the dataset.  timeout_seconds: ends a
        call that brings nothing; none is repeated.  batches: how many to read at most.
        """
        dataset = next(each for each in described.datasets if each.name == name)
        self._context_length = (
            dataset.row_tokens - 1
            if dataset.row_tokens
            else min(_CONTEXT_LENGTH, dataset.longest_file_tokens - 1)
        )
        row_bytes = (self._context_length + 1) * max(1, dataset.token_bytes)
        # 0 is an unknown limit.
        rows_max = described.limits.batch_bytes_max // row_bytes or _BATCH_ROWS
        self._batch_rows = min(_BATCH_ROWS, rows_max)
        order = orders.latest("random")
        stream = Stream.of_dataset(name, order, 0, self._context_length)
        request = Request(stream, Position(0, self._batch_rows), num_batches=batches)
        self._source = Servers(
            server.target,
            request,
            timeouts=Timeouts(read_seconds=timeout_seconds, reconnect_seconds=0.0),
            credentials=credentials,
            client_name="tokenfeed doctor",
            is_tool=True,
            authority=server.authority,
            planes=PlaneSelection(loss_mask=False),
        )
        self._counters = Counters()
        self._rows = self._source.open_rows(
            request, prefetch_bytes=PREFETCH_BYTES, counters=self._counters
        )
        self._seen = [(0.0, 0, 0)]
        self.ended = False
        """Whether no more rows come."""

    def read(self) -> None:
        """Read until the last batch, or until `close`; in a thread that no signal interrupts.
        Raises: TokenfeedError.
        """
        self._seen = [(time.monotonic(), 0, 0)]
        try:
            self._rows.start()
            while self._rows.peek(self._batch_rows) is not None:
                self._rows.consume(self._batch_rows)
                found = self._counters
                # The beginning and the first batch stay, the latest batch follows them.
                self._seen[2:] = [(time.monotonic(), found.rows, found.frame_bytes)]
        finally:
            self.ended = True
            self.close()

    def close(self) -> None:
        """End the stream, and close its connection. May be called twice."""
        self._rows.close()
        self._source.close()

    @property
    def has_begun(self) -> bool:
        """Whether a batch has arrived."""
        return len(self._seen) > 1

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens of x and bytes of messages per second: from the first batch on, if there is a
        second one.
        """
        (begin, *before), (end, *after) = self._seen[-2:]
        rows, size = (now - then for now, then in zip(after, before, strict=True))
        return rows * self._context_length / (end - begin), size / (end - begin)

    @property
    def first_seconds(self) -> float:
        """How long the first batch took."""
        return self._seen[1][0] - self._seen[0][0]


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
    """Read with all readers at once, for some seconds after the first batch of each.

    prober: another connection to the server, for small calls.  place: where it listens.
    timeout_seconds: for each look.  Raises: TokenfeedError.
    """
    began, processor_began = time.monotonic(), time.process_time()
    outcomes: list[Outcome[None]] = [Outcome() for _ in readers]
    for reader, outcome in zip(readers, outcomes, strict=True):
        start_thread(partial(outcome.run, reader.read), "tokenfeed-doctor-reader")
    connects: list[float] = []
    calls: list[float] = []
    end = math.inf
    while time.monotonic() < end and not any(reader.ended for reader in readers):
        if all(reader.has_begun for reader in readers):
            end = min(end, time.monotonic() + seconds)
            # The readers have the same problem, or it was no problem.
            with suppress(OSError, TokenfeedError):
                connects.append(connect_seconds(place, timeout_seconds))
                asked_at = time.perf_counter()
                prober.ask(pb.DescribeRequest(), pb.DescribeResponse, timeout_seconds).result()
                calls.append(time.perf_counter() - asked_at)
        time.sleep(min(_PAUSE_SECONDS, seconds / 10))
    elapsed, used = time.monotonic() - began, time.process_time() - processor_began
    for reader in readers:
        reader.close()
    for outcome in outcomes:
        outcome.wait()
    rates = [reader.rates for reader in readers]
    return Load(
        sum(tokens for tokens, _ in rates),
        sum(size for _, size in rates),
        max(reader.first_seconds for reader in readers),
        median(connects) if connects else None,
        median(calls) if calls else None,
        used / elapsed,
    )


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
