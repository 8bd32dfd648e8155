"""The calls under way: how many, whose, and which of them wait for a client that does nothing.

The thread of a call waits for its request, and then for its client to read; gRPC would let it wait
for ever.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tokenfeed.errors import Busy, InvalidRequest, ServerUnavailable, TokenfeedError
from tokenfeed.wire.frame import BYTES_PER_SECOND_MIN

from ..runtime.exceptions import log_exception

_LOG = logging.getLogger("tokenfeed.server")

CALLS_PER_STREAM = 2
"""A client has one call being read and one ahead."""
CALLS_SPARE = 16
"""Threads of a pool beside those for the calls that are admitted: for those that are refused."""
_REQUEST_SECONDS = 10.0
_POLL_SECONDS = 1.0
_BUSY_SECONDS = 1.0
_JITTER = (0.5, 1.5)

Parsed = TypeVar("Parsed", bound=Message)


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """streams: at once, of all peers.  peer_streams: of one peer, which is an address without its
    port.  stall_seconds: how long a frame may wait for its client to read.  by_option: whether the
    command line has options for the first two.
    """

    streams: int = 512
    peer_streams: int = 256
    send_timeout_seconds: float = 30.0
    by_option: bool = True

    def option(self, name: str) -> str:
        """Return what a refusal says of the option of a limit."""
        return f" ({name})" if self.by_option else ""


DESCRIBE_LIMITS = StreamLimits(streams=32, peer_streams=16, by_option=False)
"""Of calls that are answered at once, so that those who do not even ask hold up no stream."""


class ActiveCall:
    """A call that was admitted."""

    def __init__(self, context: grpc.ServicerContext, peer: str) -> None:
        """Nothing waits to be read yet."""
        self.peer = peer
        self.client_name = ""
        """What the client calls itself, for people; "" as long as it has not."""
        self.context = context
        self._overdue_at = float("inf")

    def wait(self, seconds: float) -> None:
        """Note that from now on the client is waited for, so long at most."""
        self._overdue_at = time.monotonic() + seconds

    def stop_timer(self) -> None:
        """Note that it is waited for no longer."""
        self._overdue_at = float("inf")

    def expired(self, now: float) -> bool:
        """Whether the client was waited for too long."""
        return now > self._overdue_at


class AdmissionControl:
    """Admits calls up to some limits, evicts those whose client does nothing, and ends all of them
    when the server is stopped.
    """

    def __init__(self, limits: StreamLimits) -> None:
        """Begin with none."""
        self._limits = limits
        self._lock = threading.Lock()
        self._open: set[ActiveCall] = set()
        self._of_peer: Counter[str] = Counter()
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._evict, name="tokenfeed-evict", daemon=True)
        self._thread.start()

    @property
    def calls_max(self) -> int:
        """How many calls are admitted at once."""
        return CALLS_PER_STREAM * self._limits.streams

    @contextmanager
    def admit(self, context: grpc.ServicerContext) -> Iterator[ActiveCall]:
        """Count a call for the length of the with block.  Raises: Busy beyond a limit;
        ServerUnavailable when the server is being stopped.
        """
        call = ActiveCall(context, _peer(context))
        with self._lock:
            self._require_room(call.peer)
            self._open.add(call)
            self._of_peer[call.peer] += 1
        try:
            yield call
        finally:
            with self._lock:
                self._open.discard(call)
                self._of_peer[call.peer] -= 1
                if not self._of_peer[call.peer]:
                    del self._of_peer[call.peer]

    def send_frame(self, call: ActiveCall, message: bytes) -> Iterator[bytes]:
        """Yield a frame to the client, and watch over how long it takes it.  Raises:
        ServerUnavailable after it, when the server is being stopped.
        """
        call.wait(self._limits.send_timeout_seconds + len(message) // BYTES_PER_SECOND_MIN)
        yield message
        call.stop_timer()
        self._require_not_draining()

    def request(self, call: ActiveCall, messages: Iterator[bytes]) -> bytes:
        """Return what a client asks, which may come long after it said that it will ask.

        messages: those of its call, of which the first counts.  Raises: InvalidRequest if there is
        none; grpc.RpcError if the client went away, or was evicted.
        """
        for message in self.requests(call, messages):
            return message
        raise InvalidRequest("request", "is missing; the call has no message")

    def requests(self, call: ActiveCall, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all that a client asks, and evict it if it neither asks nor ends its call.  Raises:
        grpc.RpcError if the client went away, or was evicted.
        """
        while True:
            call.wait(_REQUEST_SECONDS)
            try:
                message = next(messages)
            except StopIteration:
                return
            finally:
                call.stop_timer()
            yield message

    def drain(self) -> None:
        """Let every call end with its next frame, and admit no other. May be called twice."""
        self._draining.set()

    def _require_room(self, peer: str) -> None:
        self._require_not_draining()
        limits = self._limits
        if len(self._open) >= self.calls_max:
            problem = f"{limits.streams} are under way, the limit of this server"
            raise Busy("streams", problem + limits.option("--max-streams"), _BUSY_SECONDS)
        if self._of_peer[peer] >= CALLS_PER_STREAM * limits.peer_streams:
            problem = f"{limits.peer_streams} are under way from one address, its share"
            raise Busy("streams", problem + limits.option("--max-streams-per-peer"), _BUSY_SECONDS)

    def _require_not_draining(self) -> None:
        if self._draining.is_set():
            raise ServerUnavailable(
                "server", "is being stopped; ask another one, or this one again"
            )

    def _evict(self) -> None:
        while not self._draining.wait(_POLL_SECONDS):
            now = time.monotonic()
            with self._lock:
                expired = [call for call in self._open if call.expired(now)]
            for call in expired:
                _LOG.warning(
                    "evicted peer=%s client=%r: was waited for too long",
                    call.context.peer(),
                    call.client_name,
                )
                call.context.cancel()


def _peer(context: grpc.ServicerContext) -> str:
    """Return who calls, without a port: "ipv4:10.0.0.1", or "unix:" for all on this machine."""
    kind, _, rest = str(context.peer()).partition(":")
    return f"{kind}:{rest.rpartition(':')[0]}" if kind in ("ipv4", "ipv6") else kind


@contextmanager
def abort_on_error(context: grpc.ServicerContext) -> Iterator[None]:
    """End a call as what is raised in the with block says; its text reaches the caller only where
    it was written for one.
    """
    try:
        yield
    except TokenfeedError as error:
        _LOG.debug("refused peer=%s status=%s %s", context.peer(), error.status, error)
        if isinstance(error, Busy):
            # Varied, or all that were refused together come back together.
            milliseconds = int(1000 * error.retry_seconds * random.uniform(*_JITTER))
            # As gRPC's retry design, A6, has it.
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(milliseconds)),))
        context.abort(grpc.StatusCode[error.status], str(error))
    except grpc.RpcError:
        pass  # the client went away before it asked
    except Exception:  # noqa: BLE001 - its text must not reach the caller
        log_exception(logging.ERROR, "failed peer=%s", context.peer())
        context.abort(
            grpc.StatusCode.UNAVAILABLE, "server: could not answer this request; its log says why"
        )


def parse_message(kind: Callable[[], Parsed], message: bytes) -> Parsed:
    """Return a request as the message that it has to be.  Raises: InvalidRequest if it is none."""
    request = kind()
    try:
        request.ParseFromString(message)
    except DecodeError:
        raise InvalidRequest("request", f"is no valid {request.DESCRIPTOR.name}") from None
    return request


def run_in_pool(pool: ThreadPoolExecutor, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose calls gRPC runs in a pool, and not in that of its server."""
    pooled = functools.partial(method)
    # gRPC looks for this attribute.
    pooled.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return pooled
