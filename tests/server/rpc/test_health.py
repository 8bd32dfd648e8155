"""grpc.health.v1: the service that Kubernetes and load balancers call."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import Serve, WriteTokens
from tests.server.requests import batches

STATUS = health_pb2.HealthCheckResponse
SECONDS = 5.0


def health(channel: grpc.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
    return int(answer.status)


def watch(channel: grpc.Channel, service: str = "") -> Iterator[health_pb2.HealthCheckResponse]:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=4 * SECONDS)


@pytest.fixture
def two(write_tokens: WriteTokens) -> list[Path]:
    return [write_tokens(np.arange(1, 20_000), name) for name in ("train.bin", "val.bin")]


def test_the_server_and_each_dataset_are_serving(serve: Serve, two: list[Path]) -> None:
    server = serve("--data", two[0], "--data", two[1])
    with grpc.insecure_channel(server.address) as channel:
        assert [health(channel, name) for name in ("", "train", "val")] == [STATUS.SERVING] * 3
        with pytest.raises(grpc.RpcError) as caught:
            health(channel, "test")

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_truncated_dataset_is_not_serving_and_the_others_are(
    serve: Serve, two: list[Path]
) -> None:
    """The server itself is serving as long as it has a dataset to serve."""
    server = serve("--data", two[0], "--data", two[1])
    with grpc.insecure_channel(server.address) as channel:
        ill = watch(channel, "train")
        assert next(ill).status == STATUS.SERVING
        os.truncate(two[0], 1000)

        assert next(ill).status == STATUS.NOT_SERVING
        assert [health(channel, name) for name in ("", "val")] == [STATUS.SERVING] * 2

        whole = watch(channel)
        assert next(whole).status == STATUS.SERVING
        os.truncate(two[1], 1000)

        assert next(whole).status == STATUS.NOT_SERVING


def test_a_server_that_shuts_down_is_not_serving(serve: Serve, two: list[Path]) -> None:
    server = serve("--data", two[0])
    with grpc.insecure_channel(server.address) as channel:
        watched = watch(channel)
        assert next(watched).status == STATUS.SERVING
        server.process.terminate()

        assert next(watched).status == STATUS.NOT_SERVING
    assert server.process.wait(timeout=10) == 0


def test_no_load_hides_health(serve: Serve, two: list[Path]) -> None:
    """All streams that are allowed are open and read, and more are requested all the time."""
    server = serve("--data", two[0], "--max-streams", "2")
    with grpc.insecure_channel(server.address) as channel:
        stopped, full = threading.Event(), threading.Event()

        def consume() -> None:
            while not stopped.is_set():
                if is_refused(itertools.islice(frames(channel), 100)):
                    full.set()

        threads = [threading.Thread(target=consume) for _ in range(12)]
        for thread in threads:
            thread.start()
        try:
            assert full.wait(SECONDS)
            for _ in range(20):
                assert health(channel) == STATUS.SERVING
        finally:
            stopped.set()
            for thread in threads:
                thread.join()


def is_refused(call: Iterator[bytes]) -> bool:
    """Read a call to its end; return whether a limit refused it."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return False


def frames(channel: grpc.Channel) -> Iterator[bytes]:
    """Request batches, the same ones each time."""
    request = batches(batch_size=8, context_length=256, order="random-1", num_batches=1000)
    ask = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
    yield from ask(request.SerializeToString(), timeout=SECONDS)


def test_a_watch_sends_nothing_while_nothing_changes(serve: Serve, two: list[Path]) -> None:
    """Every watcher would be woken every second, and have to compare."""
    server = serve("--data", two[0])
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=3.5)
        assert next(watched).status == STATUS.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(watched)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_watch_of_an_unknown_name_sends_that_it_is_unknown(serve: Serve, two: list[Path]) -> None:
    """As the protocol has it; only Check fails."""
    with grpc.insecure_channel(serve("--data", two[0]).address) as channel:
        assert next(watch(channel, "test")).status == STATUS.SERVICE_UNKNOWN


def test_a_request_that_is_garbage_is_the_callers_error(serve: Serve, two: list[Path]) -> None:
    with grpc.insecure_channel(serve("--data", two[0]).address) as channel:
        for method in ("Check", "Watch"):
            with pytest.raises(grpc.RpcError) as caught:
                next(channel.unary_stream(f"/grpc.health.v1.Health/{method}")(b"\xff"))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.alone
def test_a_watch_that_is_not_read_blocks_no_other_call(serve: Serve, two: list[Path]) -> None:
    """Neither other callers, nor the detection of a failed dataset, nor the exit."""
    server = serve("--data", two[0], "--data", two[1], "--drain-seconds", "1")
    with unread_watch(server.address), grpc.insecure_channel(server.address) as channel:
        well = watch(channel, "train")
        assert next(well).status == STATUS.SERVING
        os.truncate(two[0], 1000)

        assert next(well).status == STATUS.NOT_SERVING
        assert health(channel, "val") == STATUS.SERVING
        began = time.monotonic()
        assert server.stop() == 0
    assert time.monotonic() - began < 2.0


@contextmanager
def unread_watch(address: str) -> Iterator[None]:
    """Open a Watch in a connection that never lets a byte of an answer through."""
    host, _, port = address.rpartition(":")
    no_window = struct.pack(">HI", 4, 0)
    pairs = {
        ":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "x", "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2(4, 0, 0, no_window))
        connection.sendall(h2(1, 4, 1, headers) + h2(0, 1, 1, bytes(5)))
        # The server's answers to that: its SETTINGS, and that ours are in force.
        while h2(4, 1, 0) not in connection.recv(65536):
            pass
        yield


def h2(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


@pytest.mark.alone
def test_checks_without_a_request_block_no_other_call(serve: Serve, two: list[Path]) -> None:
    """Neither another peer's Check, nor a stream, nor the exit."""
    path = two[0].parent / "feed.sock"
    server = serve("--data", two[0], "--unix", path, "--drain-seconds", "1")

    def nothing() -> Iterator[bytes]:
        assert never.wait(30)
        yield from ()

    never = threading.Event()
    with (
        grpc.insecure_channel(server.address) as hostile,
        grpc.insecure_channel(f"unix:{path}") as other,
    ):
        half_open = [
            hostile.stream_stream(f"/grpc.health.v1.Health/{method}")(nothing())
            for _ in range(100)
            for method in ("Check", "Watch")
        ]
        # Those beyond a peer's share are refused; by then the others are there too.
        while sum(not call.is_active() for call in half_open) < 2 * (100 - 16):
            time.sleep(0.02)
        assert health(other) == STATUS.SERVING
        assert next(watch(other)).status == STATUS.SERVING
        assert next(frames(hostile))
        began = time.monotonic()
        assert server.stop() == 0
        never.set()
    assert time.monotonic() - began < 2.0


def test_a_peer_that_checks_often_is_not_refused(serve: Serve, two: list[Path]) -> None:
    """Everybody behind one address translation is one peer."""
    server = serve("--data", two[0])
    with grpc.insecure_channel(server.address) as channel:
        held = [watch(channel) for _ in range(16)]
        assert [next(call).status for call in held] == [STATUS.SERVING] * 16
        assert [health(channel) for _ in range(200)] == [STATUS.SERVING] * 200


def test_a_unix_socket_serves_trainers_of_this_machine(
    serve: Serve, two: list[Path], tmp_path: Path
) -> None:
    paths = [tmp_path / "feed.sock", tmp_path / "second.sock"]
    server = serve("--data", two[0], "--unix", paths[0], "--unix", paths[1])
    with ExitStack() as channels:
        targets = [server.address, *(f"unix:{path}" for path in paths)]
        first = [
            next(frames(channels.enter_context(grpc.insecure_channel(target))))
            for target in targets
        ]

    assert len(first) == 3
    assert first[0] == first[1] == first[2]


def test_a_unix_socket_in_use_is_refused_and_a_stale_one_is_replaced(
    serve: Serve, two: list[Path], tmp_path: Path
) -> None:
    from tokenfeed.server.cli.serve import main

    path = tmp_path / "feed.sock"
    server = serve("--data", two[0], "--unix", path)
    assert main(["--data", str(two[0]), "--port", "0", "--unix", str(path)]) == 1
    server.process.kill()
    server.process.wait(timeout=10)
    assert path.exists()

    serve("--data", two[0], "--unix", path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert health(channel) == STATUS.SERVING


def test_a_path_that_is_not_a_socket_is_not_touched(
    two: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenfeed.server.cli.serve import main

    before = two[1].read_bytes()
    assert main(["--data", str(two[0]), "--port", "0", "--unix", str(two[1])]) == 1
    assert "exists and is not a socket" in capsys.readouterr().err
    assert two[1].read_bytes() == before


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_another_program_is_not_touched(
    two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: int
) -> None:
    """A socket that takes no connection of this kind is no stale one."""
    from tokenfeed.server.cli.serve import main

    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind == socket.SOCK_SEQPACKET:
            other.listen()
        before = path.stat().st_ino
        assert main(["--data", str(two[0]), "--port", "0", "--unix", str(path)]) == 1
        assert path.stat().st_ino == before
    assert f"--unix: {path}: Protocol wrong type for socket" in capsys.readouterr().err
