"""Admission control: limits on active calls, in total and per peer, and timeouts for idle clients.

The thread of a call waits for its request, and then for its client to read. gRPC alone would let
it wait forever.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tokenfeed.errors import Busy, InvalidRequest, ServerUnavailable
from tokenfeed.wire.frame import BYTES_PER_SECOND_MIN, FRAME_BYTES_FIRST

from .error_status import CallCounts, CallDrained

_LOG = logging.getLogger("tokenfeed.server")

CALLS_PER_STREAM = 2
"""A client has one call that it reads and one ahead."""
CALLS_SPARE = 16
"""Extra threads of a pool, which refuse calls above the limit."""
REQUEST_SECONDS = 10.0
"""How long a call may wait for its client to send a request."""
POLL_SECONDS = 1.0
"""How often timers of calls are looked at."""
_BUSY_SECONDS = 1.0
SHUTTING_DOWN = ("server", "is shutting down; retry on another server")

Parsed = TypeVar("Parsed", bound=Message)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """streams: maximum number of concurrent streams.  peer_streams: the same for one peer, which is
    an address without its port.  send_timeout_seconds: how long a frame may wait for its client to
    read.  by_option: whether the command line has options for the first two.
    request_timeout_seconds: how long a call may wait for its client to send a request.
    """

    streams: int = 512
    peer_streams: int = 256
    send_timeout_seconds: float = 30.0
    by_option: bool = True
    request_timeout_seconds: float = field(default_factory=lambda: REQUEST_SECONDS)

    def shown(self, streams: int, option: str) -> tuple[str, str]:
        """Return a limit and its option, as an error shows them: a service without options is not
        one of streams, so its limit is that of calls.
        """
        if self.by_option:
            return str(streams), f" ({option})"
        return f"{CALLS_PER_STREAM * streams} calls", ""


DESCRIBE_LIMITS = StreamLimits(streams=32, peer_streams=16, by_option=False)
"""For calls that are answered at once: separate, so that idle clients do not block streams."""


@dataclass(eq=False, slots=True)
class Connection:
    """What the open calls of a connection have in common. A stream makes a call for every few MiB,
    and has the next one open before the last one ends. Without a call it is forgotten.

    peer: the address of the caller, without its port.  calls: how many are open.  sent_bytes: of
    all frames.  frame_bytes: the size of the next one.
    """

    peer: str
    calls: int = 0
    sent_bytes: int = 0
    frame_bytes: int = FRAME_BYTES_FIRST


@dataclass(eq=False, slots=True)
class ActiveCall:
    """A call that was admitted, with a timer.

    client_name: the name that the client gave itself, for logs; "" until then.  timer: the name of
    the timer that was started last.  expires_at: of that timer; infinite if none is running.
    is_evicted: whether a timer has cancelled the call.
    """

    context: grpc.ServicerContext
    connection: Connection
    client_name: str = ""
    timer: str = ""
    expires_at: float = math.inf
    is_evicted: bool = False

    def start_timer(self, name: str, seconds: float) -> None:
        """Start to wait for the client, for at most this long."""
        self.timer = name
        self.expires_at = time.monotonic() + seconds

    def stop_timer(self) -> None:
        """Stop the timer: the client did what was waited for."""
        self.expires_at = math.inf


class AdmissionControl:
    """Admits calls up to the limits, cancels those whose client is idle for too long, and ends all
    of them when the server shuts down.
    """

    def __init__(self, limits: StreamLimits, counts: CallCounts | None = None) -> None:
        """Start without calls.  counts: what to count in, if others share it."""
        self._limits = limits
        self.counts = counts or CallCounts()
        self._lock = threading.Lock()
        self._open: set[ActiveCall] = set()
        self._of_peer: Counter[str] = Counter()
        self._connections: dict[str, Connection] = {}
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._expire, name="tokenfeed-calls", daemon=True)
        self._thread.start()

    @property
    def calls_max(self) -> int:
        """Maximum number of concurrent calls."""
        return CALLS_PER_STREAM * self._limits.streams

    @contextmanager
    def admit(self, context: grpc.ServicerContext) -> Iterator[ActiveCall]:
        """Count a call for the duration of the with block.  Raises: Busy above a limit;
        ServerUnavailable while the server shuts down.
        """
        address = str(context.peer())
        with self._lock:
            connection = self._connections.get(address) or Connection(_peer(address))
            self._require_room(connection.peer)
            call = ActiveCall(context, connection)
            self._open.add(call)
            self._of_peer[connection.peer] += 1
            connection.calls += 1
            if ":" in connection.peer:  # not a Unix socket: all of those have the same address
                self._connections[address] = connection
        try:
            yield call
        finally:
            with self._lock:
                self._open.discard(call)
                self._of_peer[connection.peer] -= 1
                if not self._of_peer[connection.peer]:
                    del self._of_peer[connection.peer]
                connection.calls -= 1
                if not connection.calls:
                    self._connections.pop(address, None)

    @property
    def is_draining(self) -> bool:
        """Whether the server shuts down."""
        return self._draining.is_set()

    @property
    def has_calls(self) -> bool:
        """Whether any call is open."""
        return bool(self._open)

    @property
    def streams_max(self) -> int:
        """Maximum number of concurrent streams."""
        return self._limits.streams

    def send_frame(
        self,
        call: ActiveCall,
        message: bytes,
        on_sent: Callable[[bool], None] = lambda is_taken: None,
    ) -> Iterator[bytes]:
        """Yield a frame to the client, under the send timeout.

        on_sent: called with True when the frame was taken, with False if the call ended and its
        client may have it.  Raises: CallDrained after that, while the server shuts down.
        """
        seconds = self._limits.send_timeout_seconds + len(message) // BYTES_PER_SECOND_MIN
        call.start_timer("send_timeout", seconds)
        try:
            yield message
        except GeneratorExit:
            # The client has ended the call. A client that has all of its rows often does so before
            # gRPC asks for the next frame, and then it has this one.
            if time.monotonic() < call.expires_at:
                on_sent(False)
            raise
        call.stop_timer()
        call.connection.sent_bytes += len(message)
        on_sent(True)
        if self._draining.is_set():
            raise CallDrained(*SHUTTING_DOWN)

    def request(
        self, call: ActiveCall, messages: Iterator[bytes], kind: Callable[[], Parsed]
    ) -> Parsed:
        """Return the request of a call. It may arrive long after the call's headers.

        messages: those of the call; the first one counts.  kind: of that message.
        Raises: InvalidRequest if there is none, or it is of another kind; grpc.RpcError if the
        client went away, or its call was cancelled by the timeout.
        """
        for message in self.requests(call, messages):
            return parse_message(kind, message)
        raise InvalidRequest("request", "is missing: the call has no message")

    def requests(self, call: ActiveCall, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all requests of a call, and cancel it if the client neither sends one nor ends the
        call in time.  Raises: grpc.RpcError if the client went away, or at the timeout.
        """
        while True:
            call.start_timer("request_timeout", self._limits.request_timeout_seconds)
            try:
                message = next(messages)
            except StopIteration:
                return
            finally:
                call.stop_timer()
            yield message

    def drain(self) -> None:
        """End every call after its next frame, and admit no more. May be called twice."""
        self._draining.set()

    def _require_room(self, peer: str) -> None:
        if self._draining.is_set():
            raise ServerUnavailable(*SHUTTING_DOWN)
        limits = self._limits
        if len(self._open) >= self.calls_max:
            limit, option = limits.shown(limits.streams, "--max-streams")
            problem = f"the server is at its limit of {limit}"
        elif self._of_peer[peer] >= CALLS_PER_STREAM * limits.peer_streams:
            limit, option = limits.shown(limits.peer_streams, "--max-streams-per-peer")
            problem = f"the server is at its limit of {limit} for one address"
        else:
            return
        cure = f"retry in {_BUSY_SECONDS:.0f} s"
        raise Busy(
            "streams" if limits.by_option else "calls", f"{problem}{option}; {cure}", _BUSY_SECONDS
        )

    def _expire(self) -> None:
        while not self._draining.wait(POLL_SECONDS):
            now = time.monotonic()
            with self._lock:
                expired = [
                    call for call in self._open if now > call.expires_at and not call.is_evicted
                ]
            for call in expired:
                call.is_evicted = True
                self.counts.evicted(call.timer)
                _LOG.warning(
                    "stream closed peer=%s client=%r reason=%s",
                    call.context.peer(),
                    call.client_name,
                    call.timer,
                )
                call.context.cancel()


def _peer(address: str) -> str:
    """Return the caller without its port: "ipv4:10.0.0.1", or "unix" for all Unix sockets."""
    kind, _, rest = address.partition(":")
    return f"{kind}:{rest.rpartition(':')[0]}" if kind in ("ipv4", "ipv6") else kind


def parse_message(kind: Callable[[], Parsed], message: bytes) -> Parsed:
    """Parse a request.  Raises: InvalidRequest if it is not a valid message of this kind."""
    request = kind()
    try:
        request.ParseFromString(message)
    except DecodeError:
        raise InvalidRequest("request", f"is not a valid {request.DESCRIPTOR.name}") from None
    return request


def run_in_pool(pool: ThreadPoolExecutor, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose calls gRPC runs in this pool instead of the server's."""
    pooled = functools.partial(method)
    # gRPC reads this attribute.
    pooled.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return pooled


def add_service(
    server: grpc.Server,
    service: str,
    methods: Mapping[str, tuple[Callable[..., Handler], Callable[..., Any]]],
    calls_max: int,
) -> None:
    """Register a service with a server. It has its own threads, so that streams cannot block it.

    methods: by name, the kind of handler, and what answers.  calls_max: that it admits.
    """
    pool = ThreadPoolExecutor(calls_max + CALLS_SPARE, f"tokenfeed-{service}")
    handlers = {name: kind(run_in_pool(pool, answer)) for name, (kind, answer) in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
