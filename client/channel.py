"""The way to a server: address, channel options, and the two calls of the contract as bytes ->
bytes.

Responses are not deserialized by grpc: a frame is sliced, not parsed (tokenfeed.frame).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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

from tokenfeed.errors import Busy, InvalidRequest, TokenfeedError, Unreachable, from_status
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .threads import Outcome, start_thread, without_frames
from .tls_check import TLS_CHECK_SECONDS, tls_problem

RpcError = grpc.RpcError
"""What a call raises while it is iterated."""

DNS = "dns:///"
_UNIX = "unix:"

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


def settle(call: Call) -> None:
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
        Raises: TokenfeedError, as `translated`; InvalidRequest where they are, which takes up to
        TLS_CHECK_SECONDS longer.
        """
        try:
            return pb.DescribeResponse.FromString(self._call.result())
        except grpc.RpcError as error:
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE
            failure = translated(without_frames(error), self._target)
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


Token = str | os.PathLike[str] | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is protected. What it holds is never said or logged, nor where it lies.

    tls_ca: PEM file of the authorities that servers have to be signed by; None is plaintext.
    tls_cert, tls_key: PEM files of one's own certificate, for servers that ask for one.  token: a
    bearer token, the file it stands in, or what returns it, asked for each call; None is none.
    """

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: Token | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check what goes together.  Raises: InvalidRequest."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert", "and tls_key go together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidRequest("tls_ca", "is missing; it says which servers to trust")

    def channel(self, target: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """Open a channel; a unix socket is no network, and has no TLS.  Raises: InvalidRequest, its
        subject one of CREDENTIALS, if a file cannot be read, or is no PEM.
        """
        if self.tls_ca is None or target.startswith(_UNIX):
            return grpc.insecure_channel(target, options)
        credentials = grpc.ssl_channel_credentials(
            _pem("tls_ca", self.tls_ca, b"CERTIFICATE"),
            None if self.tls_key is None else _pem("tls_key", self.tls_key, b"PRIVATE KEY"),
            None if self.tls_cert is None else _pem("tls_cert", self.tls_cert, b"CERTIFICATE"),
        )
        return grpc.secure_channel(target, credentials, options)

    def metadata(self, target: str) -> tuple[tuple[str, str], ...]:
        """Return what a call carries.  Raises: InvalidRequest, its subject "token", where that
        would travel in plaintext, or cannot be had.
        """
        if self.token is None:
            return ()
        if self.tls_ca is None and not _is_local(target):
            raise InvalidRequest("token", f"would travel to {target} in plaintext; give tls_ca too")
        token = _present(self.token)
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("token", "is no printable ASCII text")
        return (("authorization", f"Bearer {token}"),)


PLAINTEXT = Security()
CREDENTIALS = ("tls_ca", "tls_cert", "tls_key", "token")
"""The subjects of errors that are ours alone: no server can raise them."""


class Channel:
    """A connection to one server. Channels of one generation to the same server share one
    connection of this process.
    """

    def __init__(
        self,
        target: str,
        generation: int = 0,
        security: Security = PLAINTEXT,
        authority: str | None = None,
    ) -> None:
        """Remember where to connect; does no network I/O.

        target: an address as gRPC takes it.  generation: another one is another connection.
        authority: the name that the server's certificate has to have, where that is not the
        target's.  Raises: InvalidRequest, as Security.channel.
        """
        self.target = target
        self._security = security
        self._authority = authority
        options: list[tuple[str, Any]] = [*_OPTIONS, (_GENERATION, generation)]
        if authority is not None:
            options += [
                ("grpc.ssl_target_name_override", authority),
                ("grpc.default_authority", authority),
            ]
        self._channel = security.channel(target, options)
        self._get_batch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            f"/{_SERVICE}/GetBatch"
        )
        self._describe: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{_SERVICE}/Describe"
        )

    def get_batch(self, request: pb.GetBatchRequest) -> Call:
        """Send a request and return the call: an iterator of encoded frames."""
        return self._get_batch(
            request.SerializeToString(), metadata=self._security.metadata(self.target)
        )

    def describe(self, request: pb.DescribeRequest, timeout_seconds: float) -> DescribeCall:
        """Ask what is served, and return the call; it ends after so many seconds."""
        call = self._describe.future(
            request.SerializeToString(),
            timeout=timeout_seconds,
            metadata=self._security.metadata(self.target),
        )
        return DescribeCall(call, self.target, self._require_no_tls_problem)

    def close(self) -> None:
        """Cancel all calls and let go of the connection."""
        self._channel.close()

    def _require_no_tls_problem(self) -> None:
        """Raise InvalidRequest if it is TLS that keeps the two from talking to each other;
        Unreachable if it may be.
        """
        if self.target.startswith(_UNIX):
            return
        place = _host_and_port(self.target)
        name = self._authority or place[0]
        found: Outcome[TokenfeedError | None] = Outcome()
        check = partial(tls_problem, self.target, place, name, self._security)
        # It asks the system's resolver, which may hang.
        start_thread(partial(found.run, check), "tokenfeed-tls-check")
        if (problem := found.wait_for(TLS_CHECK_SECONDS)) is not None:
            raise problem


def require_address(target: str) -> None:
    """Raise InvalidRequest unless target is one: "HOST:PORT", "dns:///HOST:PORT" or "unix:PATH".

    gRPC takes nearly anything, and would wait for it, or connect to port 34463 where 99999 is
    meant.
    """
    if not isinstance(target, str) or not target.isprintable() or not target.isascii():
        raise InvalidRequest("target", f"{target!r} is no address; write HOST:PORT")
    if target.startswith(_UNIX):
        if len(target) == len(_UNIX):
            raise InvalidRequest("target", f"{target!r} names no path; write unix:PATH")
        return
    host, _, port = target.removeprefix(DNS).rpartition(":")
    for kind in ("ipv4:", "ipv6:"):
        host = host.removeprefix(kind)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    if not bare or any(sign in bare for sign in "/, []@"):
        raise InvalidRequest("target", f"{target!r} is no address; write HOST:PORT")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidRequest("target", f"{target!r} has no port in [1, 65535]; write HOST:PORT")


def _host_and_port(target: str) -> tuple[str, int]:
    """Return where a target that is no Unix socket leads."""
    for kind in (DNS, "ipv4:", "ipv6:"):
        target = target.removeprefix(kind)
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def _is_local(target: str) -> bool:
    """Say whether what is sent to a target stays on this machine."""
    if target.startswith(_UNIX):
        return True
    host, _ = _host_and_port(target)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(name: str, path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(name, f"cannot be read: {error.strerror}") from error
    except TypeError:
        raise InvalidRequest(name, "is no path") from None


def _pem(name: str, path: str, kind: bytes) -> bytes:
    content = _read(name, path)
    # An empty key or certificate would abort the process, and no authority is every public one:
    # grpcio 1.62 and 1.85.
    if b"-----BEGIN " not in content or kind not in content:
        raise InvalidRequest(name, f"holds no {kind.decode()} in PEM")
    return content


def _present(token: Token) -> str:
    if isinstance(token, os.PathLike):
        words = _read("token", token).split()
        if len(words) != 1:
            problem = f"its file holds {len(words)} words, not one"
            raise InvalidRequest("token", problem)
        # What is no ASCII is found by who asks.
        return words[0].decode("latin-1")
    if not callable(token):
        return token
    try:
        return token()
    except Exception as error:  # noqa: BLE001 - a stranger's code; what it says may be a secret
        problem = f"the function given raised {type(error).__name__}"
    # Not while that one is handled: a traceback would show it.
    raise InvalidRequest("token", problem)


def translated(error: grpc.RpcError, target: str) -> TokenfeedError:
    """Return the exception that a failed call stands for: a ServerAway where asking again, or
    another server, may help.
    """
    status, details = error.code().name, error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details:
        hint = _retry_hint(error)
        if hint is None:
            return Busy("server", details)  # a proxy's: it knows no hint
        if hint.isdecimal():
            return Busy("server", details, int(hint) / 1000)
    return from_status(status, details) or Unreachable(target, f"{status}: {details}")


_TOO_LARGE = "message larger than max"
"""What gRPC itself says of a message above a limit, with the same status: it never gets smaller."""


def _retry_hint(error: grpc.RpcError) -> str | None:
    """Return after how many milliseconds a server wants to be asked again, "-1" for never; None if
    it does not say.
    """
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-retry-pushback-ms":
            return str(entry.value)
    return None


def describe(
    target: str,
    dataset: str | None = None,
    context_length: int | None = None,
    *,
    timeout_seconds: float = 10.0,
    security: Security = PLAINTEXT,
) -> pb.DescribeResponse:
    """Return what the server at target serves, in one call.

    dataset: only this one.  context_length: T for which windows are counted.  Raises: RequestError,
    Unreachable.
    """
    require_address(target)
    request = pb.DescribeRequest(dataset=dataset or "", context_length=context_length)

    def ask() -> pb.DescribeResponse:
        channel = Channel(target, security=security)
        try:
            return channel.describe(request, timeout_seconds).result(is_first_contact=True)
        finally:
            channel.close()

    # Not in the thread of the caller, where a Ctrl-C could leave a lock of gRPC's held for good.
    answer: Outcome[pb.DescribeResponse] = Outcome()
    start_thread(partial(answer.run, ask), "tokenfeed-describe")
    return answer.wait()
