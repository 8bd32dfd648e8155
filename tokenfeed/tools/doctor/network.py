"""Addresses as they were typed, TCP, and the first bytes of HTTP/2: does anything listen, and what
does it speak?

What the kernel of the server answers (a connection) is kept apart from what its process answers
(the first frame of HTTP/2), since a stopped process still gets connections.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tokenfeed.client.runtime.threads import Outcome, start_thread
from tokenfeed.client.transport.addresses import DNS, UNIX, host_and_port
from tokenfeed.client.transport.resolver import TargetResolver

from .findings import Diagnosis, Finding

_CONNECTS = 4
"""Connections whose fastest one is the round trip."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 sends first, with an empty SETTINGS frame (RFC 9113)."""
_SETTINGS = 4
_FRAME_HEADER_BYTES = 9
_TLS_ALERT = b"\x15\x03"
_ADDRESSES_MAX = 64
"""Servers of a name that are examined; further ones are left out."""

Result = TypeVar("Result")
Place = tuple[str, int] | str
"""A numeric address with a port, or the path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A place that accepts connections, and how long the fastest one took: a round trip."""

    place: Place
    seconds: float


def connect(server: Server, timeout_seconds: float) -> Connection:
    """Return the first place of a server that accepts a connection.  Raises: Diagnosis.

    All of them are tried at once.
    """
    attempts = [partial(_try, place, timeout_seconds) for place in server.places]
    failures: dict[Place, OSError] = {}
    for place, found in zip(server.places, at_once(attempts, timeout_seconds + 1.0), strict=True):
        if isinstance(found, float):
            return Connection(place, _fastest(place, found, timeout_seconds))
        failures[place] = TimeoutError() if found is None else found
    raise Diagnosis(_not_connected(server, failures, timeout_seconds))


def at_once(
    functions: Sequence[Callable[[], Result]], limit_seconds: float | None
) -> Iterator[Result | None]:
    """Run functions in threads of their own, which begin when the first result is asked for, and
    yield their results, in order; None for one that has not ended by the limit.

    Raises: what one of them raises.
    """
    outcomes: list[Outcome[Result]] = [Outcome() for _ in functions]
    for function, outcome in zip(functions, outcomes, strict=True):
        start_thread(partial(outcome.run, function), "tokenfeed-doctor")
    if limit_seconds is None:
        yield from (outcome.wait() for outcome in outcomes)
        return
    end = time.monotonic() + limit_seconds
    for outcome in outcomes:
        yield outcome.wait_for(max(0.0, end - time.monotonic()))


def connect_seconds(place: Place, timeout_seconds: float) -> float:
    """Return how long a connection takes to be accepted.  Raises: OSError."""
    began = time.perf_counter()
    opened(place, timeout_seconds).close()
    return time.perf_counter() - began


def opened(place: Place, timeout_seconds: float) -> socket.socket:
    """Return a connection to a place; each of its steps has the timeout.  Raises: OSError."""
    if not isinstance(place, str):
        return socket.create_connection(place, timeout_seconds)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(place)
    except BaseException:
        connection.close()
        raise
    return connection


def greeting(place: Place, timeout_seconds: float) -> str:
    """Greet a server in plaintext HTTP/2, as gRPC does, and return what its answer is: "http2",
    "http1", "tls", "closed", "silent" or "unknown".
    """
    try:
        with opened(place, timeout_seconds) as connection:
            connection.sendall(_PREFACE)
            return _kind_of(_received(connection, timeout_seconds))
    except TimeoutError:
        return "silent"
    except OSError:
        return "closed"


def silent(server: Server, timeout_seconds: float) -> Finding:
    """Return the problem of a server that accepts connections and answers nothing."""
    what = "the socket" if server.is_unix else f"port {server.port}"
    return Finding(
        "no-answer",
        server.name,
        "the server process does not answer: it is stopped, or hangs",
        f"the machine accepts connections on {what}, but no byte came within {timeout_seconds:g} s",
        "look at the process on its machine (ps -o stat,cmd: T is stopped; kill -CONT continues "
        "it), or restart it",
    )


def _try(place: Place, timeout_seconds: float) -> float | OSError:
    try:
        return connect_seconds(place, timeout_seconds)
    except OSError as error:
        return error


def _fastest(place: Place, first_seconds: float, timeout_seconds: float) -> float:
    seconds = first_seconds
    for _ in range(_CONNECTS - 1):
        again = _try(place, timeout_seconds)
        if not isinstance(again, float):
            break
        seconds = min(seconds, again)
    return seconds


def _received(connection: socket.socket, timeout_seconds: float) -> bytes:
    """Return the first bytes of an answer, as many as the header of a frame has, or fewer if the
    connection ends.  Raises: OSError.
    """
    answer = b""
    end = time.monotonic() + timeout_seconds
    while len(answer) < _FRAME_HEADER_BYTES and not answer.startswith(_TLS_ALERT):
        # The timeout is that of the whole answer, not of each byte.
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(_FRAME_HEADER_BYTES - len(answer))
        if not part:
            break
        answer += part
    return answer


def _kind_of(answer: bytes) -> str:
    if answer.startswith(b"HTTP/1"):
        return "http1"
    if answer.startswith(_TLS_ALERT):
        return "tls"
    if len(answer) == _FRAME_HEADER_BYTES and answer[3] == _SETTINGS:
        return "http2"
    return "unknown" if answer else "closed"


def _not_connected(
    server: Server, failures: dict[Place, OSError], timeout_seconds: float
) -> Finding:
    """Return the problem of a server whose places all fail: that of the one that got furthest."""
    # A refusal comes from the machine itself; silence at least from the way to it.
    rank = {errno.ECONNREFUSED: 0, errno.ENOENT: 0, errno.EACCES: 0}
    place, error = min(
        failures.items(),
        key=lambda item: rank.get(
            item[1].errno or 0, 1 if isinstance(item[1], TimeoutError) else 2
        ),
    )
    if server.is_unix:
        return Finding(
            "port-closed",
            server.name,
            "no server listens at this Unix socket",
            f"{place}: {error.strerror or 'no answer'}",
            "start the server with --unix and this path, and check who may open it",
        )
    if isinstance(error, TimeoutError):
        return Finding(
            "port-filtered",
            server.name,
            f"port {server.port} of {server.host} is filtered, or the machine is off",
            f"{shown(place)} neither accepted nor refused a connection within "
            f"{timeout_seconds:g} s; a closed port refuses at once",
            f"let TCP port {server.port} through from this machine: firewall, security group, "
            "NetworkPolicy; check the address",
        )
    if error.errno == errno.ECONNREFUSED:
        return Finding(
            "port-closed",
            server.name,
            f"nothing listens at port {server.port} of {server.host}",
            f"{shown(place)} refused the connection",
            "start the server, or correct the port; a server with --host 127.0.0.1 is reached "
            "from its own machine only",
        )
    return Finding(
        "no-route",
        server.name,
        f"there is no way from this machine to {server.host}",
        f"{shown(place)}: {error.strerror or error}",
        f"check the address, and the route to it (ip route get {shown(place).rpartition(':')[0]})",
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server to examine.

    name: as it is shown.  target: in gRPC's format.  authority: the name in its certificate, if it
    is not that of the target.  host, port: as they were typed; "" and 0 for a Unix socket.
    places: numeric addresses with their port, of a name the first ones; or one path, of a socket.
    """

    name: str
    target: str
    authority: str | None
    host: str
    port: int
    places: tuple[Place, ...]

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket of this machine."""
        return not self.host


def resolve(target: str, timeout_seconds: float) -> list[Server]:
    """Return the servers of a target that `require_address` accepts: each address of a dns:///
    name is one, and all addresses of HOST:PORT together are one.  Raises: Diagnosis.
    """
    if target.startswith(UNIX):
        path = target.removeprefix(UNIX)
        return [Server(target, target, None, "", 0, (path.removeprefix("//"),))]
    host, port = host_and_port(target)
    resolver = TargetResolver(f"{DNS}[{host}]:{port}" if ":" in host else f"{DNS}{host}:{port}")
    resolver.resolve(age_seconds=0.0)
    resolver.wait(timeout_seconds)
    if not resolver.addresses:
        raise Diagnosis(_not_resolved(target, host, resolver, timeout_seconds))
    addresses = resolver.addresses[:_ADDRESSES_MAX]
    places = tuple(host_and_port(address) for address in addresses)
    if not target.startswith(DNS):
        return [Server(target, target, None, host, port, places)]
    return [
        Server(shown(place), address, host, host, port, (place,))
        for address, place in zip(addresses, places, strict=True)
    ]


def unresolved(target: str) -> Server:
    """Return the server of a name that is not known, without any place to connect to."""
    return Server(target, target, None, *host_and_port(target), ())


def shown(place: Place) -> str:
    """Return a place to connect to as text."""
    if isinstance(place, str):
        return place
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _not_resolved(
    target: str, host: str, resolver: TargetResolver, timeout_seconds: float
) -> Finding:
    evidence = resolver.problem
    if resolver.pending:
        evidence = f"the resolver did not answer within {timeout_seconds:g} s"
    return Finding(
        "name-not-resolved",
        target,
        f"the name {host} is not known on this machine",
        f"{host} {evidence}" if evidence == resolver.problem else evidence,
        f"check the spelling and this machine's name service (getent hosts {host}), or pass an IP "
        "address",
    )
