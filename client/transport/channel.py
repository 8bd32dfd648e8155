"""A connection to a server: channel options, and the calls of the contract as bytes -> bytes.

grpc does not deserialize responses: a frame is sliced, not parsed (tokenfeed/wire/frame.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

# gRPC's core logs to the trainer's stderr when a server goes away or the trainer forks; failover.py
# logs what matters. grpc reads this variable once, at import, so the trainer's environment is
# restored afterwards.
_IS_SET = "GRPC_VERBOSITY" in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
import grpc
from grpc.experimental import ChannelOptions

if not _IS_SET:
    del os.environ["GRPC_VERBOSITY"]

from tokenfeed.errors import (
    Busy,
    LimitExceeded,
    NotATokenfeedServer,
    TokenfeedError,
    Unreachable,
    from_status,
)
from tokenfeed.v1 import provenance_pb2 as provenance_pb
from tokenfeed.v1 import status_pb2 as status_pb
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads import Outcome, start_thread, without_traceback
from .addresses import UNIX, host_and_port, require_address
from .credentials import PLAINTEXT, Credentials
from .tls_check import TLS_CHECK_SECONDS, tls_problem

CHECK_SERVER = "Check that the server runs and the address is right"
"""The cure in errors about a server that does not answer."""

RpcError = grpc.RpcError
"""What a call raises while it is iterated."""

_METHODS = {
    method.input_type.full_name: f"/{service.full_name}/{method.name}"
    for contract in (pb, status_pb, provenance_pb)
    for service in contract.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""By the request that each of them takes."""

Answer = TypeVar("Answer", bound=Message)

_OPTIONS = (
    # A single row may exceed the default limit of 4 MiB; other frames do not.
    ("grpc.max_receive_message_length", -1),
    # An HTTP proxy in the environment would make every feed unreachable.
    ("grpc.enable_http_proxy", 0),
    # The default windows and frames of HTTP/2 are made for small messages. With these the rate is
    # steadier from the first second.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # No extra thread of grpc between the socket and the receiving thread.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)
_GENERATION = "tokenfeed.generation"
"""gRPC ignores this option, but only channels with equal options share a connection."""


class Call(Protocol):
    """An open call of rows: an iterator of encoded frames."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the frames as they arrive.  Raises: grpc.RpcError while iterating."""

    def cancel(self) -> bool:
        """Cancel the call, from any thread."""


def drain_events(call: Call) -> None:
    """Consume the remaining events of a cancelled GetBatch call, in the thread that iterated it.

    Until then grpcio counts the call as open, and its connection stays open even after the channel
    is closed (grpc/grpc#42125). There is no public API for this. Without it, the connection stays
    until the server ends it, five minutes later.
    """
    take_event = getattr(call, "_consume_next_event", None)
    while take_event is not None and getattr(getattr(call, "_state", None), "due", None):
        take_event()


class UnaryCall(Generic[Answer]):
    """An open call with one answer."""

    def __init__(self, call: grpc.Future[bytes], kind: type[Answer], channel: Channel) -> None:
        """Wrap a call on a channel.  kind: the message that is its answer."""
        self._call = call
        self._kind = kind
        self._channel = channel

    def result(self, *, is_first_contact: bool = False) -> Answer:
        """Wait for the answer.

        is_first_contact: no server has answered yet, so the credentials may be wrong.
        Raises: TokenfeedError, like `error_from_rpc`; InvalidRequest for wrong credentials, whose
        check takes up to TLS_CHECK_SECONDS longer.
        """
        try:
            return self._kind.FromString(self._call.result())
        except grpc.RpcError as error:
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE
            failure = error_from_rpc(without_traceback(error), self._channel.target)
        except grpc.FutureCancelledError:
            raise Unreachable(self._channel.target, "the call was cancelled") from None
        except DecodeError:
            name = self._kind.DESCRIPTOR.name
            raise Unreachable(self._channel.target, f"sent an invalid {name}") from None
        # Outside the except block: gRPC's error is the call itself, and as the context of this one
        # it would be freed in the consumer's thread.
        if is_first_contact and is_away:
            self._channel.require_no_tls_problem()
        raise failure

    def cancel(self) -> None:
        """Cancel the call, from any thread."""
        self._call.cancel()


DescribeCall = UnaryCall[pb.DescribeResponse]


class Channel:
    """A connection to one server. In one process, channels of the same generation to the same
    server share one connection.
    """

    def __init__(
        self,
        target: str,
        generation: int = 0,
        credentials: Credentials = PLAINTEXT,
        authority: str | None = None,
    ) -> None:
        """Prepare a connection; does no network I/O.

        target: an address in gRPC's format.  generation: a new one makes a new connection.
        authority: the name in the server's certificate, if it differs from the target's.  Raises:
        InvalidRequest if the credentials cannot be used.
        """
        self.target = target
        self._credentials = credentials
        self._authority = authority
        # In a fork, gRPC would find the parent's connection again.
        own = (_GENERATION, f"{os.getpid()}.{generation}")
        options: list[tuple[str, Any]] = [*_OPTIONS, own]
        if authority is not None:
            options += [
                ("grpc.ssl_target_name_override", authority),
                ("grpc.default_authority", authority),
            ]
        self._channel = _open(target, credentials, options)

    def get_batch(
        self,
        request: pb.GetBatchRequest | pb.GetRowsRequest,
        timeout_seconds: float | None = None,
    ) -> Call:
        """Send a request of batches, or of single rows, and return the call: an iterator of encoded
        frames.

        timeout_seconds: when the call ends by itself; None: never.
        """
        method = _METHODS[request.DESCRIPTOR.full_name]
        callable_: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
        return callable_(
            request.SerializeToString(),
            timeout=timeout_seconds,
            metadata=self._credentials.metadata(self.target),
        )

    def ask(
        self, request: Message, kind: type[Answer], timeout_seconds: float
    ) -> UnaryCall[Answer]:
        """Send a request with one answer, and return the call; it ends after timeout_seconds.

        kind: the message that is its answer.
        """
        method = _METHODS[request.DESCRIPTOR.full_name]
        callable_: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        call = callable_.future(
            request.SerializeToString(),
            timeout=timeout_seconds,
            metadata=self._credentials.metadata(self.target),
        )
        return UnaryCall(call, kind, self)

    def close(self) -> None:
        """Cancel all calls and close the connection."""
        self._channel.close()

    def require_no_tls_problem(self) -> None:
        """Raise InvalidRequest if TLS prevents the connection; Unreachable if it possibly does."""
        if self.target.startswith(UNIX):
            return
        address = host_and_port(self.target)
        name = self._authority or address[0]
        found: Outcome[TokenfeedError | None] = Outcome()

        def check() -> TokenfeedError | None:
            # No server, no usable alert, or a name that cannot be used in a handshake: no problem.
            with suppress(OSError, ValueError):
                known = tls_problem(
                    self.target, address, name, self._credentials, TLS_CHECK_SECONDS
                )
                return None if known is None else known.error
            return None

        # It uses the system's resolver, which may hang.
        start_thread(partial(found.run, check), "tokenfeed-tls-check")
        if (problem := found.wait_for(TLS_CHECK_SECONDS)) is not None:
            raise problem


def _open(
    target: str, credentials: Credentials, options: Sequence[tuple[str, Any]]
) -> grpc.Channel:
    """Open a channel; a Unix socket never uses TLS.  Raises: InvalidRequest, its subject one of
    CREDENTIAL_FIELDS, if a file is missing, cannot be read, or is not PEM.
    """
    # A certificate without its key would abort the process (grpcio 1.85).
    credentials.require_whole()
    if credentials.tls_ca is None or target.startswith(UNIX):
        return grpc.insecure_channel(target, options)
    protection = grpc.ssl_channel_credentials(*credentials.read_pems())
    return grpc.secure_channel(target, protection, options)


def error_from_rpc(error: grpc.RpcError, target: str) -> TokenfeedError:
    """Return the exception for a failed call: a ServerUnavailable if a retry, on this or another
    server, may help.
    """
    status, details = error.code().name, error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if _TOO_LARGE in details:
            return LimitExceeded("request", f"{details} (gRPC's own limit at {target})")
        hint = _retry_hint(error)
        # That of a proxy has no hint.
        return Busy("server", details) if hint is None else Busy("server", details, hint)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        problem = f"is not a tokenfeed server ({details}); check the address"
        return NotATokenfeedServer(target, problem)
    return from_status(status, details) or Unreachable(target, f"{status}: {details}")


_TOO_LARGE = "message larger than max"
"""In gRPC's own error for a message above a limit, with the same status: a retry cannot help."""


_HINT = re.compile("[0-9]{1,9}")
"""Up to eleven days in milliseconds. The digits are limited: int and float have limits too."""


def _retry_hint(error: grpc.RpcError) -> float | None:
    """Return after how many seconds the server asks to retry; None without such a hint."""
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-retry-pushback-ms" and _HINT.fullmatch(str(entry.value)):
            return int(entry.value) / 1000
    return None


def describe(
    target: str,
    context_length: int | None = None,
    *,
    dataset: str = "",
    order: str = "",
    long_documents: str = "",
    timeout_seconds: float = 10.0,
    credentials: Credentials = PLAINTEXT,
    authority: str | None = None,
) -> pb.DescribeResponse:
    """Return what the server at target serves, in one call.

    context_length: T for the number of windows.  dataset: the only one to describe; "": all.
    order, long_documents: over documents, with its version, whose rows are counted too; of one
    dataset.  authority: as for `Channel`.  Raises: RequestError, Unreachable.
    """
    require_address(target)
    request = pb.DescribeRequest(
        dataset=dataset,
        context_length=context_length,
        order=order,
        long_documents=long_documents,
    )

    def ask() -> pb.DescribeResponse:
        try:
            with closing(Channel(target, 0, credentials, authority)) as channel:
                call = channel.ask(request, pb.DescribeResponse, timeout_seconds)
                return call.result(is_first_contact=True)
        except Unreachable as error:
            if not error.problem.startswith(("UNAVAILABLE: failed", "DEADLINE_EXCEEDED")):
                raise  # the server, or the check of TLS, has said what is wrong
            raise Unreachable(error.subject, f"{error.problem}. {CHECK_SERVER}") from None

    # Not in the caller's thread, where a Ctrl-C could leave a lock of gRPC locked for ever.
    answer: Outcome[pb.DescribeResponse] = Outcome()
    start_thread(partial(answer.run, ask), "tokenfeed-describe")
    return answer.wait()
