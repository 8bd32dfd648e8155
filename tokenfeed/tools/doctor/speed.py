"""How fast rows arrive from a server, as a feed receives them, and whether the line is the limit.

The kernel of a server accepts a connection whatever its process does. So a connection that takes
long while rows arrive has waited in a queue of the line. What else limits a rate is the matter of
`tokenfeed bench`, and of the status of the server.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.runtime.threads import start_thread
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Redaction
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request

from .findings import Finding
from .network import Connection, Server, connect_seconds

_CONTEXT_LENGTH = 2048
_BATCH_ROWS = 32
_PAUSE_SECONDS = 0.05
"""Between two connections."""
_QUEUE_SECONDS_MIN = 0.001
_QUEUE_SHARE_MIN = 0.3
"""A connection that takes these seconds longer than without load, and this share of the round trip
longer, has waited in a queue. Behind 50 Mbit/s (tbf) it took 6 to 30 ms longer than 0.04 ms; on the
loopback 0.2 ms, with all of a processor in use; 2 shared cores, 2026-11."""
_PROCESSOR_SHARE = 0.8
"""Of a core: above it, this process has no time left to receive faster."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen while rows were read from a server.

    tokens_per_second, bytes_per_second: count tokens of x, and bytes of messages.  first_seconds:
    is the time until the first batch.  connect_seconds: is what a new connection took in the
    median; None if there was none.  processor_share: was used by this process, of one core.
    """

    tokens_per_second: float
    bytes_per_second: float
    first_seconds: float
    connect_seconds: float | None
    processor_share: float

    @property
    def mbit_per_second(self) -> float:
        """Of messages; with all headers the line carries some percent more."""
        return 8e-6 * self.bytes_per_second


def read_rows(
    server: Server,
    connection: Connection,
    credentials: Credentials,
    described: pb.DescribeResponse,
    name: str,
    *,
    seconds: float,
    timeout_seconds: float,
) -> Load:
    """Read random windows of a dataset for some seconds after the first batch; 0 is one batch.

    connection: says where the server listens.  described: is the answer of the server.  name: is
    that of the dataset, which has at least 2 tokens in a file.  timeout_seconds: ends a call that
    brings nothing; none is repeated.
    Raises: TokenfeedError.
    """
    request = _request(described, name, num_batches=1 << 30 if seconds else 1)
    batch_rows, context_length = request.position.batch_size, request.stream.context_length
    source = Servers(
        server.target,
        request,
        timeouts=Timeouts(read_seconds=timeout_seconds, reconnect_seconds=0.0),
        credentials=credentials,
        client_name="tokenfeed doctor",
        is_tool=True,
        authority=server.authority,
        planes=PlaneSelection(loss_mask=False),
    )
    counters = Counters()
    rows = source.open_rows(request, prefetch_bytes=PREFETCH_BYTES, counters=counters)
    connects: list[float] = []
    ended = threading.Event()

    def connect() -> None:  # in a thread: a far server would hold up the rows
        while not ended.wait(_PAUSE_SECONDS):
            with suppress(OSError):
                connects.append(connect_seconds(connection.place, timeout_seconds))

    seen, processor_began = [(time.monotonic(), 0, 0)], time.process_time()
    try:
        rows.start()
        while rows.peek(batch_rows) is not None:
            rows.consume(batch_rows)
            # The beginning and the first batch stay, the latest batch follows them.
            seen[2:] = [(time.monotonic(), counters.rows, counters.frame_bytes)]
            since = seen[-1][0] - seen[1][0]
            if since >= seconds:
                break
            if len(seen) == 2:  # behind the first batch
                start_thread(connect, "tokenfeed-doctor-connect")
    finally:
        ended.set()
        rows.close()
        source.close()
    (begin, *before), (end, *after) = seen[-2:]
    row_rate, byte_rate = (
        (now - then) / (end - begin) for now, then in zip(after, before, strict=True)
    )
    return Load(
        row_rate * context_length,
        byte_rate,
        seen[1][0] - seen[0][0],
        median(connects) if connects else None,
        (time.process_time() - processor_began) / (time.monotonic() - seen[0][0]),
    )


def _request(described: pb.DescribeResponse, name: str, *, num_batches: int) -> Request:
    """Return a request for random windows of a dataset, of a length that the server takes.

    described, name: are as for `read_rows`.  num_batches: says how many batches to ask for.
    """
    dataset = next(each for each in described.datasets if each.name == name)
    tokens = dataset.row_tokens or min(_CONTEXT_LENGTH + 1, dataset.longest_file_tokens)
    token_bytes, batch_rows = max(1, dataset.token_bytes), _BATCH_ROWS
    if bytes_max := described.limits.batch_bytes_max:  # 0 is an unknown limit
        if not dataset.row_tokens:
            tokens = max(2, min(tokens, bytes_max // token_bytes))
        batch_rows = max(1, min(_BATCH_ROWS, bytes_max // (tokens * token_bytes)))
    # Rows with erased tokens are served to who replaces them.
    erased = (Redaction(0, 0, dataset.erased_list),) if dataset.erased_list else ()
    stream = Stream.of_dataset(name, orders.latest("random"), 0, tokens - 1, redactions=erased)
    return Request(stream, Position(0, batch_rows), num_batches=num_batches)


def slowness(server: str, load: Load, idle_seconds: float, needed: float) -> Finding:
    """Return that rows arrive more slowly than needed, and whether the line is the limit.

    idle_seconds: is what a new connection takes without load.  needed: is in tokens per second.
    """
    connect, rate = load.connect_seconds or 0.0, f"{load.mbit_per_second:.0f} Mbit/s"
    is_queued = connect - idle_seconds > max(_QUEUE_SECONDS_MIN, _QUEUE_SHARE_MIN * idle_seconds)
    is_line = is_queued and load.processor_share <= _PROCESSOR_SHARE
    limit, cure = (
        "this machine, the line, the server, or its disk is the limit",
        "run doctor on the server's machine too, and look at the server by tokenfeed top",
    )
    if is_line:
        limit = f"the line is the limit, with {rate}"
        cure = "use a faster line, or a server nearer to the trainers"
    return Finding(
        "slow-line" if is_line else "slow",
        server,
        f"{load.tokens_per_second / 1e6:.1f} million tokens/s arrive, less than the "
        f"{needed / 1e6:,.1f} million asked for: {limit}",
        f"{rate} by one connection; while rows arrive, a new one takes {_ms(connect)} (idle "
        f"{_ms(idle_seconds)}), and this process {100 * load.processor_share:.0f} % of a core",
        f"{cure}. If the run needs less, pass --tokens-per-second",
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
