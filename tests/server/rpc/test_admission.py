"""Limits on streams, in total and per peer, and timeouts for clients that do nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.conftest import Serve, Server, WriteTokens
from tests.server.requests import batches
from tests.support.waiting import eventually, least_seconds
from tokenfeed.errors import Busy, ServerUnavailable
from tokenfeed.server.rpc import admission
from tokenfeed.server.rpc.admission import ActiveCall, AdmissionControl, StreamLimits

METHOD = "/tokenfeed.v1.TokenFeed/GetBatch"
ENDLESS = batches(
    batch_size=32,
    context_length=2048,
    order="random-1",
    num_batches=1 << 30,
    client_name="run-17 rank 3",
).SerializeToString()


POLLS = {"tokenfeed.server.rpc.admission.POLL_SECONDS": 0.05}


@pytest.fixture
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers of calls are looked at often, by what is made in this process."""
    monkeypatch.setattr(admission, "POLL_SECONDS", 0.05)


class Context:
    """The part of a call's context that is used."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.cancelled = threading.Event()

    def peer(self) -> str:
        return self._peer

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.random.default_rng(1).integers(1, 1 << 16, 1 << 22))


def unread(address: str) -> Iterator[grpc.Call]:
    """A call whose client takes one frame and then reads no more."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream(METHOD)(ENDLESS)
        next(call)
        yield call


def ending(call: grpc.Call) -> grpc.StatusCode:
    """Read what is still on the way, and return how the call ended."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    return caught.value.code()


def test_a_peer_gets_its_limit_and_no_more() -> None:
    calls = AdmissionControl(StreamLimits(streams=3, peer_streams=1))
    greedy, other = Context("ipv4:10.0.0.1:1"), Context("ipv4:10.0.0.2:1")
    try:
        with calls.admit(greedy), calls.admit(Context("ipv4:10.0.0.1:2")):
            with pytest.raises(
                Busy, match=r"limit of 1 for one address \(--max-streams-per-peer\); retry in 1 s"
            ):
                with calls.admit(Context("ipv4:10.0.0.1:3")):
                    pass
            with calls.admit(other):
                pass
        with calls.admit(greedy):
            pass
    finally:
        calls.drain()


def test_a_service_without_streams_says_its_limit_of_calls() -> None:
    """As the docs do, and not the half of it, which counts streams."""
    calls = AdmissionControl(StreamLimits(streams=2, peer_streams=1, by_option=False))
    contexts = [Context(f"ipv4:10.0.0.{peer}:1") for peer in (1, 1, 2, 2)]
    try:
        with ExitStack() as admitted:
            for context in contexts[:2]:
                admitted.enter_context(calls.admit(context))
            with pytest.raises(Busy, match=r"calls: .* limit of 2 calls for one address; retry"):
                admitted.enter_context(calls.admit(contexts[0]))
            for context in contexts[2:]:
                admitted.enter_context(calls.admit(context))
            with pytest.raises(Busy, match="limit of 4 calls; retry"):
                admitted.enter_context(calls.admit(contexts[0]))
            assert calls.has_calls
        assert not calls.has_calls
    finally:
        calls.drain()


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("ipv4:10.0.0.1:50", "ipv4:10.0.0.1:51", True),
        ("ipv6:[fe80::1]:50", "ipv6:[fe80::1]:51", True),
        ("ipv6:%5Bfe80::1%5D:50", "ipv6:%5Bfe80::2%5D:50", False),
        ("ipv4:10.0.0.1:50", "ipv4:10.0.0.2:50", False),
        ("unix:", "unix:/run/x", True),
    ],
)
def test_a_peer_is_an_address_without_its_port(one: str, another: str, same: bool) -> None:
    calls = AdmissionControl(StreamLimits(streams=9, peer_streams=1))
    try:
        with calls.admit(Context(one)) as first, calls.admit(Context(another)) as second:
            assert (first.connection.peer == second.connection.peer) == same
    finally:
        calls.drain()


def send(calls: AdmissionControl, call: ActiveCall, message: bytes) -> None:
    for _ in calls.send_frame(call, message):
        pass


def test_the_calls_of_a_connection_know_what_it_was_sent() -> None:
    """A stream makes a call for every 16 MiB, one of them ahead: it starts only once."""
    calls = AdmissionControl(StreamLimits(streams=9))
    mine, other = Context("ipv4:10.0.0.1:1"), Context("ipv4:10.0.0.1:2")
    try:
        with calls.admit(other) as other_call:
            with calls.admit(mine) as first:
                send(calls, first, b"frame")
                with calls.admit(mine) as second:
                    assert second.connection.sent_bytes == 5
                    send(calls, second, b"frame")
                assert first.connection.sent_bytes == 10
            assert other_call.connection.sent_bytes == 0
        with calls.admit(mine) as later:
            assert later.connection.sent_bytes == 0, "its port may be another client's by now"
    finally:
        calls.drain()


def test_calls_over_unix_sockets_are_streams_of_their_own() -> None:
    """They all have the same address."""
    calls = AdmissionControl(StreamLimits(streams=9))
    try:
        with calls.admit(Context("unix:")) as one, calls.admit(Context("unix:")) as another:
            send(calls, one, b"frame")
            assert another.connection.sent_bytes == 0
    finally:
        calls.drain()


@pytest.mark.usefixtures("polls_often")
def test_a_call_that_is_not_read_is_closed_and_an_idle_one_is_not() -> None:
    """A client may pause as long as it likes while no frame waits for it."""
    calls = AdmissionControl(StreamLimits(send_timeout_seconds=0.2))
    stalled, paused = Context("ipv4:10.0.0.1:1"), Context("ipv4:10.0.0.1:2")
    try:
        with calls.admit(stalled) as call, calls.admit(paused) as idle:
            next(calls.send_frame(call, b"frame"))
            for _ in calls.send_frame(idle, b"frame"):
                pass

            assert stalled.cancelled.wait(5)
            assert not paused.cancelled.is_set()
    finally:
        calls.drain()


@pytest.mark.parametrize(("timeout_seconds", "counted"), [(60.0, 1), (1e-6, 0)])
def test_the_frame_that_a_client_ends_its_call_with_counts_unless_it_was_late(
    timeout_seconds: float, counted: int
) -> None:
    """A client that has all of its rows often ends the call before gRPC asks for the next frame."""
    calls = AdmissionControl(StreamLimits(send_timeout_seconds=timeout_seconds))
    sent: list[bool] = []
    try:
        with calls.admit(Context("ipv4:10.0.0.1:1")) as call:
            sending = calls.send_frame(call, b"frame", sent.append)
            next(sending)
            eventually(lambda: time.monotonic() > call.expires_at, 0.1)
            sending.close()

            assert sent == [False] * counted
    finally:
        calls.drain()


@pytest.mark.usefixtures("polls_often")
def test_a_large_frame_has_a_longer_timeout() -> None:
    """A row of 64 MiB over a slow link is not a stall."""
    calls = AdmissionControl(StreamLimits(send_timeout_seconds=0.1))
    slow, stalled = Context("ipv4:10.0.0.1:1"), Context("ipv4:10.0.0.1:2")
    try:
        with calls.admit(slow) as call, calls.admit(stalled) as other:
            next(calls.send_frame(call, bytes(64 << 20)))
            next(calls.send_frame(other, b"frame"))

            assert stalled.cancelled.wait(5)
            assert not slow.cancelled.is_set()
    finally:
        calls.drain()


def test_a_server_that_shuts_down_ends_calls_with_their_next_frame() -> None:
    calls = AdmissionControl(StreamLimits())
    with calls.admit(Context("ipv4:10.0.0.1:1")) as call:
        calls.drain()
        handing = calls.send_frame(call, b"frame")
        assert next(handing) == b"frame"
        with pytest.raises(ServerUnavailable, match="is shutting down"):
            next(handing)
    with pytest.raises(ServerUnavailable), calls.admit(Context("ipv4:10.0.0.1:1")):
        pass


def test_a_client_that_stops_reading_is_closed_and_its_neighbor_is_not(
    serve: Serve, corpus: Path
) -> None:
    # The neighbor reads again within this time, on a busy machine too.
    server = serve("--data", corpus, "--send-timeout-seconds", "3", timers=POLLS)
    with grpc.insecure_channel(server.address) as channel:
        stalled, neighbor = (channel.unary_stream(METHOD)(ENDLESS) for _ in range(2))
        next(stalled)
        end = time.monotonic() + 15
        while "stream closed" not in server.stderr and time.monotonic() < end:
            next(neighbor)

        assert ending(stalled) is grpc.StatusCode.CANCELLED
        assert server.stderr.count("stream closed peer=") == 1
        assert "client='run-17 rank 3' reason=send_timeout" in server.stderr
        next(neighbor)


def test_calls_without_a_request_are_closed_and_block_no_other(serve: Serve, corpus: Path) -> None:
    """Headers, and then no message: each of them occupies a thread."""
    limits = ("--max-streams", "8", "--max-streams-per-peer", "8")
    timers = {**POLLS, "tokenfeed.server.rpc.admission.REQUEST_SECONDS": 6.0}
    server = serve("--data", corpus, *limits, timers=timers)

    def nothing() -> Iterator[bytes]:
        assert never.wait(100)
        yield from ()

    never = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        asking = [channel.stream_stream(METHOD)(nothing()) for _ in range(60)]
        assert eventually(lambda: refused(asking) == 60 - 16)
        assert eventually(lambda: server.stderr.count("reason=request_timeout") == 16, 60)
        never.set()
        next(channel.unary_stream(METHOD)(ENDLESS))


def refused(calls: list[grpc.Call]) -> int:
    """How many have ended with the status of a limit."""
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    return sum(not call.is_active() and call.code() is full for call in calls)


def test_streams_above_the_limit_of_a_peer_are_told_to_retry(serve: Serve, corpus: Path) -> None:
    server = serve("--data", corpus, "--max-streams", "4", "--max-streams-per-peer", "1")
    with grpc.insecure_channel(server.address) as channel:
        calls = [channel.unary_stream(METHOD)(ENDLESS) for _ in range(2)]
        next(calls[0]), next(calls[1])
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.unary_stream(METHOD)(ENDLESS))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--max-streams-per-peer" in caught.value.details()
    hints = {entry.key: entry.value for entry in caught.value.trailing_metadata()}
    assert 500 <= int(hints["grpc-retry-pushback-ms"]) <= 1500


def test_a_batch_above_the_limit_is_refused_without_a_retry_hint(
    serve: Serve, corpus: Path
) -> None:
    server = serve("--data", corpus, "--max-batch-bytes", "1000")
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.unary_stream(METHOD)(ENDLESS))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.trailing_metadata() == ()


@pytest.mark.alone
def test_a_stopping_server_exits_in_time_whatever_is_not_read(serve: Serve, corpus: Path) -> None:
    """One client reads, another has stopped to, a third has sent half of a preface."""

    def measure() -> float:
        server = serve("--data", corpus)
        with (
            grpc.insecure_channel(server.address) as channel,
            socket.create_connection(("localhost", port(server))) as half,
        ):
            half.sendall(b"PRI * HTTP")
            unread_call = channel.unary_stream(METHOD)(ENDLESS)
            read = channel.unary_stream(METHOD)(ENDLESS)
            next(unread_call), next(read)
            began = time.monotonic()
            server.process.terminate()
            status = ending(read)
            assert server.process.wait(timeout=10) == 0
            seconds = time.monotonic() - began
        assert status is grpc.StatusCode.UNAVAILABLE
        return seconds

    seconds = [least_seconds(measure, 2.0, tries=1) for _ in range(3)]
    assert min(seconds) < 2.0
    assert max(seconds) < 4.0


@pytest.mark.alone
def test_a_stopping_server_exits_in_time_whatever_it_reads(serve: Serve, tmp_path: Path) -> None:
    """A chmod makes it reread a file, which takes it seconds."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate((1 << 30) - 2)
        file.seek(0, 2)
        file.write(b"\1\0")
    options = ("--dtype", "uint16", "--warm-up-bytes", "0", "--drain-seconds", "1")
    server = serve("--data", path, *options)
    threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
    path.chmod(0o640)
    assert eventually(lambda: len(os.listdir(f"/proc/{server.process.pid}/task")) > threads + 2)

    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 2.0


@pytest.mark.alone
def test_a_stopping_server_exits_in_time_though_its_log_is_not_read(
    serve: Serve, corpus: Path
) -> None:
    """Each thread that logs is blocked then, the main one too."""
    reader, writer = os.pipe()
    server = serve("--data", corpus, "--drain-seconds", "1", stderr=writer)
    logged = b""
    while b"warm-up ended" not in logged:
        logged += os.read(reader, 4096)
    # Another description of the same pipe: the server's own still waits.
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(filler, bytes(size))
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 2.0
    finally:
        for descriptor in (reader, writer, filler):
            os.close(descriptor)


def port(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-streams", "0"),
        ("--max-streams-per-peer", "0"),
        ("--send-timeout-seconds", "0"),
        ("--drain-seconds", "-1"),
        ("--max-request-bytes", "10"),
    ],
)
def test_an_invalid_limit_is_named(
    option: str, value: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenfeed.server.cli.serve import main

    assert main(["--data", str(corpus), option, value]) == 1
    assert f"error: {option}" in capsys.readouterr().err
    logging.getLogger().handlers.clear()
