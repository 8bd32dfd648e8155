"""The port: binds it, says where, and stops in time.

A port in use is an error here. gRPC by itself shares it silently (SO_REUSEPORT), and with several
addresses is content when one of them could be had.
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

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    # Whoever connects and does not speak, or no longer answers, or has nothing to ask, is let go.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.http2.settings_timeout", 20_000),
    ("grpc.keepalive_time_ms", 10_000),
    # gRPC 1.62 heeds the first; anything that comes counts as an answer to it. 1.85 closes only by
    # the second (60 s by default), and only for the answer itself, but has the kernel close by the
    # first (TCP_USER_TIMEOUT). An answer waits behind what is on its way already: with 10 s in
    # either, lines of 30 to 100 KB/s were cut again and again. A mute peer was closed after 80 s,
    # now after 45. 2026-11.
    ("grpc.keepalive_timeout_ms", 35_000),
    ("grpc.http2.ping_timeout_ms", 35_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_connection_idle_ms", 300_000),
)


def allow_connections() -> None:
    """Let this process have as many descriptors, and so connections, as it may give itself: 1024,
    which is what most systems begin with, are less than --max-streams and health may need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A kernel whose fs.nr_open was lowered since allows no more than there is.
    with suppress(ValueError, OSError):
        if soft == hard:
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _LOG.info("raised the limit of descriptors from=%d to=%d", soft, hard)


def create_server(
    handler: grpc.GenericRpcHandler,
    *,
    calls_max: int,
    request_bytes_max: int,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
) -> grpc.Server:
    """Return a server that is not bound to any port yet.

    calls_max: how many the service admits; gRPC's own limit would refuse the others for good.
    """
    pool = ThreadPoolExecutor(calls_max + CALLS_SPARE, "tokenfeed-call")
    options = (*_OPTIONS, ("grpc.max_receive_message_length", request_bytes_max))
    return grpc.server(pool, handlers=[handler], interceptors=list(interceptors), options=options)


def bind(
    server: grpc.Server,
    host: str | None,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    *,
    has_secrets: bool = False,
) -> str:
    """Bind the server and return the address, "host:port".

    host: a name or an address; None is all interfaces, IPv6 and IPv4, or IPv4 alone where there is
    no IPv6.
    port: in [0, 65535]; 0 picks a free one.  credentials: None is plaintext.  has_secrets: whether
    plaintext is refused except on a loopback address.  Raises: InvalidRequest if that is not
    possible.
    """
    if not 0 <= port <= 65535:
        raise InvalidRequest("--port", f"{port} is not in [0, 65535]")
    family, address = _resolve("0.0.0.0" if host is None else host, port)
    if address == "0.0.0.0" and _has_ipv6():
        # gRPC makes it all interfaces of both kinds anyway; so that is what is probed and said.
        family, address = socket.AF_INET6, "::"
    is_local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if has_secrets and credentials is None and not is_local:
        raise InvalidRequest(
            "--token-file",
            "needs --tls-cert and --tls-key, or tokens would travel in plaintext; "
            "--allow-plaintext-token allows that",
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
        problem = "" if credentials is None else ", or gRPC does not take --tls-cert and --tls-key"
        raise InvalidRequest("--port", f"{where}:{port} cannot be bound{problem}")
    if credentials is None and not is_local:
        _LOG.warning(
            "plaintext address=%s: anybody who can reach this port can read the datasets", where
        )
    return f"{where}:{bound}"


def bind_unix(server: grpc.Server, path: str) -> str:
    """Bind the server to a Unix socket too and return the address, "unix:PATH".

    A socket that nobody listens on any more is replaced.  Raises: InvalidRequest if somebody does,
    if there is something else at the path, or if it cannot be made.
    """
    address = f"unix:{path}"
    try:
        address.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("--unix", f"{path!r} is not valid UTF-8") from None
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise InvalidRequest("--unix", f"{path} exists and is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise InvalidRequest("--unix", f"somebody else listens on {path}")
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InvalidRequest("--unix", f"{path}: {error.strerror}") from error
    bound = 0
    with suppress(RuntimeError):
        bound = server.add_insecure_port(address)
    if bound == 0:
        raise InvalidRequest("--unix", f"{path} cannot be bound: is there such a folder?")
    return address


def stop(server: grpc.Server, drain_seconds: float) -> threading.Event:
    """Take no more calls, give those under way time to end, and end them, all within so many
    seconds.  Returns: at once; what is set when they have ended.
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
    """Return the family and the numeric address of a host of this machine."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a name"
        raise InvalidRequest("--host", f"{host!r} is no address: {why}") from error
    return family, str(address[0])


def _require_free(family: socket.AddressFamily, address: str, port: int) -> int:
    """Return the port if nobody listens on it, for IPv4 or IPv6; a free one if it is 0.  Raises:
    InvalidRequest.
    """
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does: a port whose last connections are still timing out is free, one that is
        # listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidRequest(
                    "--host", f"{address!r} is no address of this machine"
                ) from error
            raise InvalidRequest(
                "--port", f"{port} on {address} cannot be bound: {error.strerror}"
            ) from error
        return int(probe.getsockname()[1])
