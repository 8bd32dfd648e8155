"""The way to a server: channel options, and the two calls of the contract as bytes -> bytes.

Responses are not deserialized by grpc: a frame is sliced, not parsed (tokenfeed.frame).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import DecodeError

# gRPC's core logs to the trainer's stderr when a server goes away or the trainer forks; what is
# worth a line is said by the tour (tour.py). It reads this once, when it is imported, so that the
# trainer's environment stays as it is.
_IS_SET = "GRPC_VERBOSITY" in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
import grpc
from grpc.experimental import ChannelOptions

if not _IS_SET:
    del os.environ["GRPC_VERBOSITY"]

from tokenfeed.errors import Busy, LimitExceeded, TokenfeedError, Unreachable, from_status
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads import Outcome, start_thread, without_frames
from .addresses import UNIX, host_and_port, require_address
from .credentials import PLAINTEXT, Credentials
from .tls_check import TLS_CHECK_SECONDS, tls_problem

RpcError = grpc.RpcError
"""What a call raises while it is iterated."""

_SERVICE = pb.DESCRIPTOR.services_by_name["TokenFeed"].full_name

_OPTIONS = (
    # One row may be longer than the default limit of 4 MiB; otherwise no frame is.
    ("grpc.max_receive_message_length", -1),
    # A proxy set for the web would make every feed unreachable.
    ("grpc.enable_http_proxy", 0),
    # The default windows and frames of HTTP/2 are made for small messages: steadier from the first
    # second.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # No thread of grpc's own between the socket and the receiving thread.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)
_GENERATION = "tokenfeed.generation"
"""gRPC does not know this option, but connections are only shared where all options agree."""


class Call(Protocol):
    """A call of GetBatch under way: an iterator of encoded frames."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the frames as they arrive.  Raises: grpc.RpcError while iterating."""

    def cancel(self) -> bool:
        """End the call, from any thread."""


def drain_events(call: Call) -> None:
    """Take what a cancelled call of GetBatch still has to say, in the thread that iterated it.

    grpcio counts such a call as under way until then, and its connection stays open even once the
    channel is closed (grpc/grpc#42125). There is no public way; without this one a connection stays
    until the server ends it, five minutes later.
    """
    take_event = getattr(call, "_consume_next_event", None)
    while take_event is not None and getattr(getattr(call, "_state", None), "due", None):
        take_event()


class DescribeCall:
    """A call of Describe under way."""

    def __init__(
        self, call: grpc.Future[bytes], target: str, require_no_tls_problem: Callable[[], None]
    ) -> None:
        """Follow a call to target."""
        self._call = call
        self._target = target
        self._require_no_tls_problem = require_no_tls_problem

    def result(self, *, is_first_contact: bool = False) -> pb.DescribeResponse:
        """Wait for the answer.

        is_first_contact: nobody has answered yet, so that credentials may be wrong.
        Raises: TokenfeedError, as `error_from_rpc`; InvalidRequest where they are, which takes up
        to TLS_CHECK_SECONDS longer.
        """
        try:
            return pb.DescribeResponse.FromString(self._call.result())
        except grpc.RpcError as error:
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE
            failure = error_from_rpc(without_frames(error), self._target)
        except grpc.FutureCancelledError:
            raise Unreachable(self._target, "was not waited for any longer") from None
        except DecodeError:
            raise Unreachable(self._target, "sent no valid DescribeResponse") from None
        # Not while gRPC's own error is handled, which is the call itself: it must not travel to
        # the consumer's thread, and be let go of there.
        if is_first_contact and is_away:
            self._require_no_tls_problem()
        raise failure

    def cancel(self) -> None:
        """End the call, from any thread."""
        self._call.cancel()


class Channel:
    """A connection to one server. Channels of one generation to the same server share one
    connection of this process.
    """

    def __init__(
        self,
        target: str,
        generation: int = 0,
        credentials: Credentials = PLAINTEXT,
        authority: str | None = None,
    ) -> None:
        """Remember where to connect; does no network I/O.

        target: an address as gRPC takes it.  generation: another one is another connection.
        authority: the name that the server's certificate has to have, where that is not the
        target's.  Raises: InvalidRequest, where the credentials are of no use.
        """
        self.target = target
        self._credentials = credentials
        self._authority = authority
        options: list[tuple[str, Any]] = [*_OPTIONS, (_GENERATION, generation)]
        if authority is not None:
            options += [
                ("grpc.ssl_target_name_override", authority),
                ("grpc.default_authority", authority),
            ]
        self._channel = _open(target, credentials, options)
        self._get_batch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            f"/{_SERVICE}/GetBatch"
        )
        self._describe: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{_SERVICE}/Describe"
        )

    def get_batch(self, request: pb.GetBatchRequest) -> Call:
        """Send a request and return the call: an iterator of encoded frames."""
        return self._get_batch(
            request.SerializeToString(), metadata=self._credentials.metadata(self.target)
        )

    def describe(self, request: pb.DescribeRequest, timeout_seconds: float) -> DescribeCall:
        """Ask what is served, and return the call; it ends after so many seconds."""
        call = self._describe.future(
            request.SerializeToString(),
            timeout=timeout_seconds,
            metadata=self._credentials.metadata(self.target),
        )
        return DescribeCall(call, self.target, self._require_no_tls_problem)

    def close(self) -> None:
        """Cancel all calls and let go of the connection."""
        self._channel.close()

    def _require_no_tls_problem(self) -> None:
        """Raise InvalidRequest if it is TLS that keeps the two from talking to each other;
        Unreachable if it may be.
        """
        if self.target.startswith(UNIX):
            return
        place = host_and_port(self.target)
        name = self._authority or place[0]
        found: Outcome[TokenfeedError | None] = Outcome()
        check = partial(tls_problem, self.target, place, name, self._credentials)
        # It asks the system's resolver, which may hang.
        start_thread(partial(found.run, check), "tokenfeed-tls-check")
        if (problem := found.wait_for(TLS_CHECK_SECONDS)) is not None:
            raise problem


def _open(
    target: str, credentials: Credentials, options: Sequence[tuple[str, Any]]
) -> grpc.Channel:
    """Open a channel; a unix socket is no network, and has no TLS.  Raises: InvalidRequest, its
    subject one of CREDENTIAL_FIELDS, if a file is missing, cannot be read, or is no PEM.
    """
    # A certificate without its key would abort the process: grpcio 1.85.
    credentials.require_whole()
    if credentials.tls_ca is None or target.startswith(UNIX):
        return grpc.insecure_channel(target, options)
    protection = grpc.ssl_channel_credentials(*credentials.read_pems())
    return grpc.secure_channel(target, protection, options)


def error_from_rpc(error: grpc.RpcError, target: str) -> TokenfeedError:
    """Return the exception that a failed call stands for: a ServerUnavailable where asking again,
    or another server, may help.
    """
    status, details = error.code().name, error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if _TOO_LARGE in details:
            return LimitExceeded("request", f"{details} (gRPC's own limit at {target})")
        hint = _retry_hint(error)
        # A proxy's says none.
        return Busy("server", details) if hint is None else Busy("server", details, hint)
    return from_status(status, details) or Unreachable(target, f"{status}: {details}")


_TOO_LARGE = "message larger than max"
"""What gRPC itself says of a message above a limit, with the same status: it never gets smaller."""


_HINT = re.compile("[0-9]{1,9}")
"""Up to eleven days in milliseconds: neither Python nor a float takes any number of digits."""


def _retry_hint(error: grpc.RpcError) -> float | None:
    """Return after how many seconds a server wants to be asked again; None if it does not say."""
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-retry-pushback-ms" and _HINT.fullmatch(str(entry.value)):
            return int(entry.value) / 1000
    return None


def describe(
    target: str,
    context_length: int | None = None,
    *,
    timeout_seconds: float = 10.0,
    credentials: Credentials = PLAINTEXT,
) -> pb.DescribeResponse:
    """Return what the server at target serves, in one call.

    context_length: T for which windows are counted.  Raises: RequestError, Unreachable.
    """
    require_address(target)
    request = pb.DescribeRequest(context_length=context_length)

    def ask() -> pb.DescribeResponse:
        channel = Channel(target, credentials=credentials)
        try:
            return channel.describe(request, timeout_seconds).result(is_first_contact=True)
        finally:
            channel.close()

    # Not in the thread of the caller, where a Ctrl-C could leave a lock of gRPC's held for good.
    answer: Outcome[pb.DescribeResponse] = Outcome()
    start_thread(partial(answer.run, ask), "tokenfeed-describe")
    return answer.wait()
