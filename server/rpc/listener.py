"""The gRPC server's port: binds it, returns its address, and stops in time.

A port in use is an error here. gRPC alone shares it silently (SO_REUSEPORT), and of several
addresses it requires only one to be bound.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import resource
import socket
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from tokenfeed.errors import InvalidRequest

from .admission import CALLS_SPARE

_LOG = logging.getLogger("tokenfeed.server")

_EXIT_SECONDS = 0.5

_UNIX_PATH_BYTES_MAX = 107
"""That of Linux, without the NUL at its end."""

# Connections are closed without a handshake, without an answer to pings, and without calls.
HANDSHAKE_SECONDS = 20.0
PING_SECONDS = 10.0
# Any received data counts as an answer to gRPC 1.62, and only the answer itself to gRPC 1.85. An
# answer queues behind data in transit: with 10 s, connections of 30 to 100 KB/s were closed
# repeatedly. A silent peer was closed after 80 s, now after 45. 2026-11.
PING_ANSWER_SECONDS = 35.0
_IDLE_SECONDS = 300.0


def allow_connections() -> None:
    """Raise the soft limit of descriptors, and so of connections, to the hard limit. Most systems
    start with 1024, which is less than --max-streams and health may need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel refuses this if fs.nr_open was lowered below the hard limit.
    with suppress(ValueError, OSError):
        if soft == hard:
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _LOG.info("descriptor limit raised from=%d to=%d", soft, hard)


def create_server(
    handler: grpc.GenericRpcHandler,
    *,
    calls_max: int,
    request_bytes_max: int,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
) -> grpc.Server:
    """Return a server that is not bound to any port yet.

    calls_max: how many calls the service admits. gRPC's own limit is not used, because clients
    would take its refusals for permanent.
    """
    pool = ThreadPoolExecutor(calls_max + CALLS_SPARE, "tokenfeed-call")
    return grpc.server(
        pool,
        handlers=[handler],
        interceptors=list(interceptors),
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", request_bytes_max),
            ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_SECONDS)),
            ("grpc.http2.settings_timeout", _milliseconds(HANDSHAKE_SECONDS)),
            ("grpc.keepalive_time_ms", _milliseconds(PING_SECONDS)),
            # gRPC 1.62 obeys the first option. gRPC 1.85 obeys the second (60 s by default), but
            # passes the first to the kernel (TCP_USER_TIMEOUT).
            ("grpc.keepalive_timeout_ms", _milliseconds(PING_ANSWER_SECONDS)),
            ("grpc.http2.ping_timeout_ms", _milliseconds(PING_ANSWER_SECONDS)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", _milliseconds(_IDLE_SECONDS)),
        ),
    )


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


def bind(
    server: grpc.Server,
    host: str | None,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    *,
    secret: str = "",
) -> str:
    """Bind the server and return the address, "host:port".

    host: a name or an address; None is all interfaces, IPv6 and IPv4, or IPv4 alone on a machine
    without IPv6.  port: in [0, 65535]; 0 picks a free one.  credentials: None is plaintext.
    secret: the option with secrets that clients send, if plaintext is refused for them except on a
    loopback address.
    Raises: InvalidRequest if it cannot be bound.
    """
    if not 0 <= port <= 65535:
        raise InvalidRequest("--port", f"{port} is not in [0, 65535]")
    family, address = _resolve("0.0.0.0" if host is None else host, port)
    if address == "0.0.0.0" and _has_ipv6():
        # gRPC binds all IPv6 and IPv4 interfaces in this case, so probe and report that.
        family, address = socket.AF_INET6, "::"
    is_local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if secret and credentials is None and not is_local:
        raise InvalidRequest(
            secret,
            "needs --tls-cert and --tls-key, because clients would send these tokens in plaintext; "
            "pass --allow-plaintext-token to accept that",
        )
    port = _require_free(family, address, port)
    where = f"[{address}]" if family == socket.AF_INET6 else address
    bound = 0
    with suppress(RuntimeError):
        if credentials is None:
            bound = server.add_insecure_port(f"{where}:{port}")
        else:
            bound = server.add_secure_port(f"{where}:{port}", credentials)
    if bound == 0:
        problem = "" if credentials is None else ", or gRPC refuses --tls-cert and --tls-key"
        raise InvalidRequest("--port", f"{where}:{port} cannot be bound{problem}")
    if credentials is None and not is_local:
        _LOG.warning(
            "plaintext port address=%s: anyone who can reach it can read the datasets", where
        )
    return f"{where}:{bound}"


def bind_unix(server: grpc.Server, path: str) -> str:
    """Bind the server to a Unix socket too and return the address, "unix:PATH".

    A stale socket, without a listener, is replaced.  Raises: InvalidRequest if there is a listener,
    if the path is not a socket, too long or no address of gRPC, or if the socket cannot be created.
    """
    address = f"unix:{path}"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("--unix", f"{path!r} is not valid UTF-8") from None
    if size > _UNIX_PATH_BYTES_MAX:
        problem = f"{path} has {size} bytes; at most {_UNIX_PATH_BYTES_MAX} are allowed"
        raise InvalidRequest("--unix", problem)
    if signs := set(path) & set("%?#,"):  # which have a meaning in an address of gRPC
        problem = f"{path} contains {' and '.join(sorted(signs))}; choose another path"
        raise InvalidRequest("--unix", problem)
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise InvalidRequest("--unix", f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a listener that hangs may have a full queue
            found = probe.connect_ex(path)
        if found in (0, errno.EAGAIN):
            raise InvalidRequest("--unix", f"there is a listener on {path} already")
        if found != errno.ECONNREFUSED:  # a socket of another type, or of another user
            raise InvalidRequest("--unix", f"{path}: {os.strerror(found)}")
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InvalidRequest("--unix", f"{path}: {error.strerror}") from error
    bound = 0
    with suppress(RuntimeError):
        bound = server.add_insecure_port(address)
    if bound == 0:
        raise InvalidRequest("--unix", f"{path} cannot be bound; check that its folder exists")
    return address


def stop(server: grpc.Server, drain_seconds: float) -> threading.Event:
    """Accept no more calls, and end the active ones within drain_seconds.  Returns: at once; an
    event that is set when they have ended.
    """
    return server.stop(max(0.0, drain_seconds - _EXIT_SECONDS))


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Resolve a host of this machine to its family and numeric address."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a name"
        raise InvalidRequest("--host", f"{host!r} is not an address: {why}") from error
    return family, str(address[0])


def _require_free(family: socket.AddressFamily, address: str, port: int) -> int:
    """Return the port if it is free, for IPv4 or IPv6; a free one if it is 0.  Raises:
    InvalidRequest.
    """
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Like gRPC: a port with connections in TIME_WAIT is free, a port with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidRequest(
                    "--host", f"{address!r} is not an address of this machine"
                ) from error
            raise InvalidRequest(
                "--port",
                f"{port} on {address} cannot be bound: {error.strerror}; 0 picks another",
            ) from error
        return int(probe.getsockname()[1])
