"""The small HTTP server, and clients that are slow or hostile."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Never

import pytest

from tests.support.waiting import eventually
from tokenfeed.errors import InvalidRequest
from tokenfeed.server.runtime import http_server
from tokenfeed.server.runtime.http_server import HttpServer, Page


def fails(accept: str) -> Page:
    raise ValueError("a secret")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    pages = {
        "/": lambda accept: Page({"Content-Type": "text/plain", "X-Own": accept}, b"hello"),
        "/fails": fails,
    }
    server = HttpServer("--metrics-port", "127.0.0.1", 0, pages)
    yield server
    server.close()


def connect(server: HttpServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def get(server: HttpServer, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{server.address}{path}", timeout=10) as answer:
        return bytes(answer.read())


def test_a_page_is_made_for_each_request(server: HttpServer) -> None:
    request = urllib.request.Request(f"http://{server.address}/?x=1", headers={"Accept": "mine"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"hello"
        assert answer.headers["X-Own"] == "mine"
        assert answer.headers["Server"].strip() == "tokenfeed"


@pytest.mark.parametrize(("path", "status"), [("/other", 404), ("/fails", 500)])
def test_what_cannot_be_answered_says_nothing_of_the_inside(
    server: HttpServer, path: str, status: int
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(server, path)
    with caught.value as error:
        assert error.code == status
        assert b"secret" not in error.read()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("localhost:9464", 200),
        ("localhost", 200),
        ("[::1]:9464", 200),
        ("evil.example:9464", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
    ],
)
def test_a_name_that_another_site_made_local_is_not_answered(
    server: HttpServer, host: str, status: int
) -> None:
    """A page of that site could read the status through an operator's browser."""
    with connect(server) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert connection.makefile("rb").readline().split()[1] == str(status).encode()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(server: HttpServer, method: str) -> None:
    """Nothing can be changed here."""
    request = urllib.request.Request(f"http://{server.address}/", method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    with caught.value as error:
        assert error.code == 501


def test_a_client_that_sends_its_request_slowly_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte every second would hold a thread for ever."""
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.3)
    with connect(server) as slow:
        slow.sendall(b"GET / HT")
        slow.settimeout(0.02)

        def is_cut_off() -> bool:
            try:
                slow.sendall(b"T")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert eventually(is_cut_off)
    assert get(server, "/") == b"hello"


def test_connections_that_wait_do_not_keep_others_out(server: HttpServer) -> None:
    """A probe that gets no answer ends the server."""
    idle = [connect(server) for _ in range(3 * http_server._CONNECTIONS_MAX)]
    try:
        assert get(server, "/") == b"hello"
        assert len([t for t in threading.enumerate() if "process_request" in t.name]) <= (
            http_server._CONNECTIONS_MAX + 8
        )
    finally:
        for each in idle:
            each.close()


def test_a_recent_page_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of many clients takes a tenth of a second, and any number of tabs may be open."""
    made: list[int] = []

    def make() -> Page:
        made.append(1)
        return Page({}, b"%d" % len(made))

    page = http_server.CachedPage(make)
    assert [page("").content for _ in range(3)] == [b"1"] * 3
    monkeypatch.setattr(http_server, "_RECENT_SECONDS", 0.0)
    assert page("").content == b"2"


@pytest.mark.alone
def test_closing_ends_connections_and_threads(server: HttpServer) -> None:
    """A server that stops does not wait for a browser."""
    with connect(server) as open_connection:
        open_connection.sendall(b"GET")
        assert eventually(lambda: any("process_request" in t.name for t in threading.enumerate()))
        began = time.monotonic()
        server.close()
        assert open_connection.recv(1) == b""
    assert time.monotonic() - began < 2
    assert eventually(
        lambda: not any("process_request" in thread.name for thread in threading.enumerate())
    )


def test_a_port_in_use_is_an_error_that_names_the_option(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")
    with pytest.raises(InvalidRequest, match=r"^--metrics-port: \d+ on 127.0.0.1 cannot be bound"):
        HttpServer("--metrics-port", host, int(port), {})


def test_a_start_does_not_wait_for_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it drops packets, the name of a host takes as long as a resolver waits."""

    def ask(name: str) -> Never:
        raise AssertionError(f"the name of {name} was asked for")

    monkeypatch.setattr(socket, "getfqdn", ask)
    HttpServer("--metrics-port", "127.0.0.1", 0, {}).close()
