"""What broken and hostile peers may send, and what they get for it: a documented refusal, no more.

Malformed requests by the thousands are one of tests/faults.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from client import RemoteBatches, Timeouts
from tests.conftest import Serve, Server
from tests.faults.mutants import (
    DEADLINE_SECONDS,
    SERVICE,
    WORKERS,
    connected,
    data_arguments,
    open_feed,
    outcome,
    still_serves,
    valid_request,
    write_files,
)
from tests.faults.oracle import Feed
from tests.support.waiting import eventually
from tokenfeed.v1 import tokenfeed_pb2 as pb

CONNECTIONS = 1_000


@pytest.fixture
def feed(serve: Serve, tmp_path: Path) -> Feed:
    """A server of the datasets of tests/faults."""
    files = write_files(tmp_path)
    return open_feed(serve(*data_arguments(tmp_path, files)), files)


def test_an_unknown_method_is_unimplemented(feed: Feed) -> None:
    """A client of a later version learns that the server is older, not that it is broken."""
    methods = (
        f"{SERVICE}/Nope", f"{SERVICE}/getbatch", f"{SERVICE}/", "/tokenfeed.v2.TokenFeed/GetBatch",
        "/GetBatch", "/", "/a/b/c", "/" + "x" * 2000, "/../../etc/passwd", "/%00/%ff",
    )  # fmt: skip
    with connected(feed.server) as channel:
        for method in methods:
            with pytest.raises(grpc.RpcError) as refusal:
                channel.unary_unary(method)(b"", timeout=DEADLINE_SECONDS)
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
            assert "Traceback" not in refusal.value.details()
    still_serves(feed)


@pytest.mark.parametrize("request_count", [0, 2, 50])
def test_a_call_that_has_not_exactly_one_request_ends_without_harm(
    feed: Feed, request_count: int
) -> None:
    """HTTP/2 lets a peer send none, or many: the handler must neither wait forever nor fail."""
    request = valid_request(feed, random.Random(3)).SerializeToString()
    with connected(feed.server) as channel:
        call = channel.stream_stream(f"{SERVICE}/GetBatch")(
            iter([request] * request_count), timeout=DEADLINE_SECONDS
        )
        status, _, _ = outcome(call, [])
    assert status in {"OK", "INVALID_ARGUMENT"}
    still_serves(feed)


def test_a_request_that_unpacks_to_a_thousand_times_its_size_is_refused(feed: Feed) -> None:
    """The limit of 64 KiB has to hold for what a request unpacks to, or it limits nothing."""
    bomb = pb.DescribeRequest(dataset="x" * (32 << 20)).SerializeToString()
    with connected(feed.server) as channel:
        before = resident_bytes(feed.server)
        call = channel.unary_unary(f"{SERVICE}/Describe")
        with pytest.raises(grpc.RpcError) as refusal:
            call(bomb, timeout=DEADLINE_SECONDS, compression=grpc.Compression.Gzip)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, refusal.value.details()
    assert resident_bytes(feed.server) - before < 16 << 20
    still_serves(feed)


def test_thousands_of_sources_of_one_dataset_take_little_memory(
    serve: Serve, tmp_path: Path
) -> None:
    """A request of 28 KB must not make the server list the files of a dataset 2,000 times."""
    folder = tmp_path / "many"
    folder.mkdir()
    for index in range(1000):
        np.zeros(100, np.uint16).tofile(folder / f"{index:04}.bin")
    server = serve("--data", f"many={folder}")
    sources = [pb.Source(number=number, dataset="many") for number in range(2000)]
    shares = [pb.Share(source=number, weight=1) for number in range(2000)]
    before = resident_bytes(server)
    with connected(server) as channel:
        for count in range(1990, 2000):
            stage = pb.Stage(context_length=4, shares=shares[:count])
            stream = pb.Stream(sources=sources[:count], stage=stage)
            request = pb.GetBatchRequest(batch_size=2, stream=stream, num_batches=1)
            call = channel.unary_stream(f"{SERVICE}/GetBatch")(
                request.SerializeToString(), timeout=DEADLINE_SECONDS
            )
            assert outcome(call, [])[0] == "OK"
    assert resident_bytes(server) - before < 64 << 20


@pytest.mark.slow
def test_a_thousand_connections_of_random_bytes_disturb_no_client(feed: Feed) -> None:
    """A port scanner in the data center must neither stop a training nor use up descriptors."""
    with ThreadPoolExecutor(WORKERS + 1) as workers, healthy_client(feed, workers) as healthy:
        assert healthy.reads_on(100), "the healthy client got no batch at all"
        fds, threads = usage(feed.server)
        started = time.monotonic()
        batches_before = healthy.batches
        sent = sum(
            workers.map(lambda index: connect_and_babble(feed.server, index), range(CONNECTIONS))
        )
        seconds, batches = time.monotonic() - started, healthy.batches - batches_before
        assert healthy.reads_on(100), "the healthy client stood still after the last connection"
        print(f"\n{CONNECTIONS} connections, {sent:,} bytes in {seconds:.1f} s")
        print(f"{batches} right batches meanwhile")
        assert batches > 0, "the healthy client stood still meanwhile"

        eventually(
            lambda: usage(feed.server)[0] <= fds + 4 and usage(feed.server)[1] <= threads + 16, 15.0
        )
        print(f"descriptors, threads: {(fds, threads)} before, {usage(feed.server)} after")
        fds_after, threads_after = usage(feed.server)
        assert fds_after <= fds + 4
        assert threads_after <= threads + 16
    still_serves(feed)


def test_a_peer_cannot_write_lines_into_the_server_s_log(feed: Feed) -> None:
    """The log must be reliable after an incident."""
    forged = b"2026-01-01 00:00:00,000 INFO tokenfeed.server all is well"
    farewell = http2_frame(7, 0, 0, struct.pack(">II", 0, 11) + b"\n" + forged + b"\n")
    before = usage(feed.server)[0]
    with connection_to(feed.server) as connection:
        connection.sendall(PREFACE + SETTINGS + farewell)
        connection.settimeout(0.5)
        with suppress(OSError):
            while connection.recv(1 << 16):
                pass
    eventually(lambda: usage(feed.server)[0] <= before, 10.0)
    still_serves(feed)
    assert forged not in feed.server.stderr_path.read_bytes().splitlines()


# Connections of random bytes.

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def connect_and_babble(server: Server, index: int) -> int:
    """Connect, send noise, and leave in one of several rude ways. Returns: bytes sent."""
    rng = random.Random(f"connection-{index}")
    content = noise(rng)
    with connection_to(server) as connection, suppress(OSError):  # the server may hang up first
        connection.sendall(content)
        leave(connection, rng)
    return len(content)


def connection_to(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def leave(connection: socket.socket, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:  # a reset instead of an end
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    if way == 1:  # half open: nothing more will come, but answers would still be read; then a reset
        connection.shutdown(socket.SHUT_WR)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if way in (1, 2):
        connection.settimeout(0.05)
        while connection.recv(1 << 16):
            pass


def noise(rng: random.Random) -> bytes:
    """Return bytes that are less or more like HTTP/2, up to a call with a damaged message."""
    kind = rng.randrange(8)
    garbage = rng.randbytes(rng.choice((0, 1, 9, 100, 3000, 40_000)))
    if kind == 0:
        return garbage
    if kind == 1:
        return (
            rng.choice(
                (
                    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                )
            )
            + garbage
        )
    if kind == 2:
        return PREFACE[: rng.randrange(len(PREFACE) + 1)]
    if kind == 3:
        return PREFACE + garbage
    if kind == 4:
        return PREFACE + SETTINGS + garbage
    if kind == 5:  # frames whose lengths are right, and nothing else
        return PREFACE + SETTINGS + b"".join(random_frame(rng) for _ in range(rng.randrange(1, 40)))
    if kind == 6:  # headers that are none
        return PREFACE + SETTINGS + http2_frame(1, 0x4, 1, garbage[:16_000]) + random_frame(rng)
    body = rng.choice(
        (
            garbage,
            b"\x01\x00\x00\x00\x02ab",
            b"\x00\xff\xff\xff\xff" + garbage,
            b"\x00\x00\x00\x00\x03abc",
        )
    )
    return (
        PREFACE
        + SETTINGS
        + http2_frame(1, 0x4, 1, CALL_HEADERS)
        + http2_frame(0, rng.randrange(2), 1, body[:16_000])
    )


def random_frame(rng: random.Random) -> bytes:
    stream = rng.choice((0, 1, 2, 3, rng.getrandbits(32)))
    return http2_frame(
        rng.randrange(12), rng.getrandbits(8), stream, rng.randbytes(rng.choice((0, 4, 5, 8, 300)))
    )


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def literal_header(name: bytes, value: bytes) -> bytes:
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


CALL_HEADERS = b"".join(
    literal_header(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"{SERVICE}/GetBatch".encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


class HealthyClient:
    """Reads batches and compares every one of them, until it is stopped."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._stopped = threading.Event()
        self._progress = threading.Condition()
        self._failed = False
        self.batches = 0

    def run(self) -> None:
        source = pb.Source(dataset="train", seed=5)
        stream = pb.Stream(sources=[source], stage=pb.Stage(context_length=64))
        try:
            # Little room, so that it cannot live on what was sent before.
            batches = RemoteBatches(
                self._feed.server.address, 4, 64, order="random", seed=5, dataset="train",
                rank=0, world_size=1, prefetch_bytes=1 << 13,
                timeouts=Timeouts(reconnect_seconds=10.0),
            )  # fmt: skip
            with batches:
                for number, (x, y) in enumerate(batches):
                    samples = range(4 * number, 4 * number + 4)
                    rows = np.stack([self._feed.row(stream, one).tokens for one in samples])
                    np.testing.assert_array_equal(x.numpy(), rows[:, :-1])
                    np.testing.assert_array_equal(y.numpy(), rows[:, 1:])
                    with self._progress:
                        self.batches = number + 1
                        self._progress.notify_all()
                    if self._stopped.is_set():
                        return
        finally:
            with self._progress:
                self._failed = not self._stopped.is_set()
                self._progress.notify_all()

    def reads_on(self, count: int) -> bool:
        """Wait for this many more batches; return whether they came within 10 seconds."""
        with self._progress:
            goal = self.batches + count
            return (
                self._progress.wait_for(lambda: self._failed or self.batches >= goal, 10.0)
                and not self._failed
            )

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def healthy_client(feed: Feed, workers: ThreadPoolExecutor) -> Iterator[HealthyClient]:
    """Have a HealthyClient read during a `with` block; leaving it raises what went wrong there."""
    client = HealthyClient(feed)
    reading = workers.submit(client.run)
    try:
        yield client
    finally:
        client.stop()
        reading.result(timeout=15)


def usage(server: Server) -> tuple[int, int]:
    """Return how many descriptors and threads a server process has."""
    process = f"/proc/{server.process.pid}"
    return len(os.listdir(f"{process}/fd")), len(os.listdir(f"{process}/task"))


def resident_bytes(server: Server) -> int:
    with open(f"/proc/{server.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
