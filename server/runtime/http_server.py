"""A small HTTP server for pages that are made for each request. What is in them is not known here.

It is for a few clients that may be slow or hostile: connections are bounded in number and in time,
and only GET is answered.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tokenfeed.errors import InvalidRequest

from .exceptions import log_exception

_LOG = logging.getLogger("tokenfeed.server")

_CONNECTIONS_MAX = 32
"""Beyond it, the oldest one is cut off: a probe has to get through in any case."""
_REQUEST_SECONDS = 3.0
"""From accept to the end of the request."""
_CONNECTION_SECONDS = 15.0
"""From accept to close; a scrape takes milliseconds, and Prometheus gives up after 10 s."""
_POLL_SECONDS = 0.1
_RECENT_SECONDS = 1.0


class Page(NamedTuple):
    """An answer.  headers: besides Content-Length."""

    headers: Mapping[str, str]
    content: bytes


class CachedPage:
    """A page that is made at most once a second. It is for pages that take long; not for figures
    that have to be of the moment.
    """

    def __init__(self, make: Callable[[], Page]) -> None:
        """Make nothing yet."""
        self._make = make
        self._made: tuple[float, Page] | None = None

    def __call__(self, accept: str) -> Page:
        """Return the page; not in two threads at once."""
        now = time.monotonic()
        if self._made is None or now - self._made[0] >= _RECENT_SECONDS:
            self._made = now, self._make()
        return self._made[1]


class HttpServer(ThreadingHTTPServer):
    """Answers GET for some paths, in threads of its own, until it is closed. Its connections are
    bounded in number and time.
    """

    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, option: str, host: str, port: int, pages: Mapping[str, Callable[[str], Page]]
    ) -> None:
        """Listen, and start.

        option: of the command line, which an error names; its host has the same name with "host"
        for "port".  port: 0 picks a free one.  pages: by path; each is given the value of the
        request's header Accept.  Raises: InvalidRequest if it cannot listen.
        """
        self.address_family, address = _resolved(option, host, port)
        self.pages = pages
        self.turn = threading.Lock()
        """Held while a page is made: one at a time, so that scrapers cannot take all processors."""
        self._lock = threading.Lock()  # guards what follows
        # When each connection was accepted, the oldest first, and those that have sent a request.
        self._accepted: dict[socket.socket, float] = {}
        self._asked: set[socket.socket] = set()
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            problem = f"{port} on {address[0]} cannot be bound: {error.strerror}; 0 picks another"
            raise InvalidRequest(option, problem) from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="tokenfeed-http", daemon=True
        )
        self._thread.start()

    def server_bind(self) -> None:
        """Bind, without the name of this host that HTTPServer asks DNS for: that may take long."""
        socketserver.TCPServer.server_bind(self)

    @property
    def address(self) -> str:
        """Return "host:port"."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach it."""
        return ipaddress.ip_address(str(self.server_address[0]).partition("%")[0]).is_loopback

    def close(self) -> None:
        """Stop listening, and close all connections. May be called twice."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self.close_older_than(0.0, 0.0)

    def may_be_called(self, host: str) -> bool:
        """Return whether to answer a request for a host and port.

        A page of another site could make its own name mean a loopback address, and then read what
        an operator's browser may read (DNS rebinding). So there only addresses and localhost are
        answered.
        """
        if not self.is_local:
            return True
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return name in ("", "localhost") or _is_address(name.strip("[]"))

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        connection, address = super().get_request()
        with self._lock:
            oldest = next(iter(self._accepted), None)
            is_full = len(self._accepted) >= _CONNECTIONS_MAX
            if is_full and oldest is not None:
                del self._accepted[oldest]
            self._accepted[connection] = time.monotonic()
        if is_full and oldest is not None:
            _cut_off(oldest)
        return connection, address

    def has_asked(self, connection: socket.socket) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            self._asked.add(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._accepted.pop(request, None)
            self._asked.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off those that take too long."""
        self.close_older_than(_REQUEST_SECONDS, _CONNECTION_SECONDS)

    def close_older_than(self, request_seconds: float, seconds: float) -> None:
        """Cut off the connections that were accepted this long ago, which ends their threads.

        request_seconds: of those that have sent no request yet.
        """
        now = time.monotonic()
        with self._lock:
            old = [
                each
                for each, began in self._accepted.items()
                if now - began >= (seconds if each in self._asked else request_seconds)
            ]
        for connection in old:
            _cut_off(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""
        log_exception(logging.DEBUG, "http request failed")


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes."""

    server_version = "tokenfeed"
    sys_version = ""
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        """Answer."""
        assert isinstance(self.server, HttpServer)
        self.server.has_asked(self.connection)
        if not self.server.may_be_called(self.headers.get("Host", "")):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, Page(_PLAIN, b"ask by an address\n"))
            return
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            paths = " and ".join(self.server.pages)
            self._answer(HTTPStatus.NOT_FOUND, Page(_PLAIN, f"there is only {paths}\n".encode()))
            return
        try:
            with self.server.turn:
                page = make(self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001 - its text must not reach the caller
            log_exception(logging.ERROR, "page failed path=%s", self.path.partition("?")[0])
            problem = b"failed; see the server log\n"
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, Page(_PLAIN, problem))
            return
        self._answer(HTTPStatus.OK, page)

    def _answer(self, status: HTTPStatus, page: Page) -> None:
        self.send_response(status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(page.content)))
        self.end_headers()
        self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes come every few seconds."""


_PLAIN = {"Content-Type": "text/plain; charset=utf-8"}


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _resolved(option: str, host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the family of an address, and the address to bind.  Raises: InvalidRequest."""
    if not 0 <= port <= 65535:
        raise InvalidRequest(option, f"{port} is not in [0, 65535]")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a name"
        problem = f"{host!r} is not an address: {why}"
        raise InvalidRequest(option.replace("port", "host"), problem) from error
    family, _, _, _, address = found[0]
    return family, address
