"""The delivered rows are always 0, 1, 2, ..., whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.client.conftest import ScriptedServer, honest, honest_frames, wanted
from tests.faults.proxy import FaultProxy
from tests.support.waiting import eventually
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.row_stream import RowStream
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.channel import error_from_rpc
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import (
    Busy,
    CorpusChanged,
    InvalidRequest,
    LimitExceeded,
    NotATokenfeedServer,
    NotFound,
    StreamMismatch,
    TokenfeedError,
    Unreachable,
)
from tokenfeed.v1 import tokenfeed_pb2 as pb

T = 4
OpenStream = Callable[..., RowStream]


@pytest.fixture
def open_stream(scripted: ScriptedServer) -> Iterator[OpenStream]:
    """Open streams of the scripted server that are closed after the test."""
    opened: list[RowStream] = []

    def start(
        num_batches: int | None = 20,
        *,
        room_batches: int = 8,
        reconnect_seconds: float = 10.0,
    ) -> RowStream:
        request = wanted(T, 2, num_batches)
        timeouts = Timeouts(reconnect_seconds=reconnect_seconds)
        remote = Servers(scripted.address, request, timeouts=timeouts)
        stream = remote.open_rows(
            request,
            prefetch_bytes=room_batches * 2 * 2 * (T + 1),
            counters=Counters(),
        )
        opened.append(stream)
        stream.start()
        return stream

    yield start
    for stream in opened:
        stream.close()


def take(stream: RowStream) -> list[int] | None:
    """The sample of the next row, in a list; None at the end."""
    parts = stream.peek(1)
    if parts is None:
        return None
    assert [len(part) for part in parts] == [1]
    stream.consume(1)
    found: list[int] = parts[0].tokens[:, 0].tolist()
    return found


def drain(stream: RowStream, into: list[int]) -> None:
    """Append the samples of all rows, up to the end or an error."""
    while (sample := take(stream)) is not None:
        into += sample


def samples(stream: RowStream) -> list[int]:
    found: list[int] = []
    drain(stream, found)
    return found


def cut_after(frames: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Any:
    def script(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        for index, (_, message) in enumerate(honest_frames(request)):
            if index == frames:
                break
            yield message
        context.abort(code, "server: going away")

    return script


def refuse(code: grpc.StatusCode, details: str, *metadata: tuple[str, str]) -> Any:
    def script(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_trailing_metadata(metadata)
        context.abort(code, details)
        yield b""

    return script


def damaged(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    for _, message in honest_frames(request):
        yield message[:-1] + bytes([message[-1] ^ 4])


def garbage(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    yield b"\xff" * 100


def frame_twice(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    for _, message in honest_frames(request):
        yield message
        yield message


def swapped(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    messages = [message for _, message in honest_frames(request, rows_per_frame=1)]
    yield from messages[:1] + messages[:0:-1]


def too_short(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    yield next(honest_frames(request))[1]


def of_another_seed(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    other = pb.GetBatchRequest()
    other.CopyFrom(request)
    other.stream.sources[0].seed += 1
    yield from honest(other, context)


@pytest.mark.parametrize(
    "script",
    [
        cut_after(0),
        cut_after(2),
        cut_after(1, grpc.StatusCode.INTERNAL),
        cut_after(1, grpc.StatusCode.UNKNOWN),
        cut_after(1, grpc.StatusCode.CANCELLED),
        damaged,
        garbage,
        frame_twice,
        swapped,
        too_short,
        of_another_seed,
    ],
)
@pytest.mark.parametrize("call", [0, 1, 3])
def test_nothing_is_lost_or_repeated_when_a_call_goes_wrong(
    scripted: ScriptedServer, open_stream: OpenStream, script: Any, call: int
) -> None:
    """After any break the client asks for exactly what comes after its last good row."""
    scripted.scripts = [honest] * call + [script]

    found = samples(open_stream())

    assert found == list(range(40))
    assert scripted.scripts == []


def test_a_last_call_that_a_server_ends_too_early_is_asked_again(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """No later call would show that rows are missing."""
    scripted.scripts = [too_short]

    assert samples(open_stream(2)) == [0, 1, 2, 3]


def test_a_break_within_a_batch_asks_for_the_rest_of_that_batch(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """Rows that have arrived are kept, whatever batch they are in."""
    scripted.scripts = [cut_after(1)]

    assert samples(open_stream()) == list(range(40))
    asked = [(request.first_sample, request.first_row) for request in scripted.requests]
    assert (2, 1) in asked


def test_calls_are_bounded_and_one_is_always_ahead(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """A call without end would leave a stream unread whenever the trainer pauses."""
    next_call_came = threading.Event()

    def waits_for_the_next(
        request: pb.GetBatchRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        frames = honest(request, context)
        yield next(frames)
        assert next_call_came.wait(10)
        yield from frames

    def comes(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        next_call_came.set()
        yield from honest(request, context)

    scripted.scripts = [waits_for_the_next, comes]
    stream = open_stream(num_batches=None)

    assert [take(stream) for _ in range(20)] == [[sample] for sample in range(20)]
    assert all(request.HasField("num_batches") for request in scripted.requests)


def test_a_stream_asks_for_little_until_its_trainer_takes_batches(
    scripted: ScriptedServer, open_stream: OpenStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of trainers that begin together do not wait for each other's 32 MiB."""
    monkeypatch.setattr(
        "tokenfeed.client.source.row_stream.FIRST_PREFETCH_BYTES", 8 * 2 * 2 * (T + 1)
    )
    stream = open_stream(num_batches=None, room_batches=64)
    while stream._received_row < 16:
        threading.Event().wait(0.01)
    assert sum(request.num_batches for request in scripted.requests) == 8

    for _ in range(2 * 100):
        take(stream)

    while stream._received_row < 2 * 132:
        threading.Event().wait(0.01)
    asked = sum(request.num_batches for request in scripted.requests)
    assert asked <= 100 + 64


def test_a_trainer_that_pauses_leaves_no_call_unread(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """All that was asked for is received; nothing more is asked for until there is room."""
    stream = open_stream(num_batches=None, room_batches=8)
    while stream._received_row < 16:
        threading.Event().wait(0.01)

    asked = sum(request.num_batches for request in scripted.requests)

    assert asked == 8
    assert stream._received_row == 2 * asked
    assert [take(stream) for _ in range(20)] == [[sample] for sample in range(20)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.FAILED_PRECONDITION, StreamMismatch),
        (grpc.StatusCode.DATA_LOSS, CorpusChanged),
        (grpc.StatusCode.UNIMPLEMENTED, NotATokenfeedServer),
    ],
)
def test_a_refusal_that_cannot_heal_is_raised_at_once_with_the_servers_words(
    scripted: ScriptedServer,
    open_stream: OpenStream,
    code: grpc.StatusCode,
    kind: type[TokenfeedError],
) -> None:
    """A typing error does not cost a wait of ten minutes."""
    scripted.scripts = [refuse(code, "batch_size: 0 is not in [1, 10]")] * 9
    stream = open_stream()

    with pytest.raises(kind, match=r"0 is not in \[1, 10\]") as caught:
        take(stream)

    # What answers in another server's place does not speak of fields.
    expected = scripted.address if kind is NotATokenfeedServer else "batch_size"
    assert caught.value.subject == expected
    assert len(scripted.requests) <= 2


def test_a_row_longer_than_any_message_is_refused_by_the_server_and_not_by_a_clock(
    scripted: ScriptedServer,
) -> None:
    """The timeout grows with the row; the limit of a thread's wait does not."""
    scripted.scripts = [refuse(grpc.StatusCode.INVALID_ARGUMENT, "context_length: too long")] * 9
    request = wanted(1 << 62, 2, 1)
    remote = Servers(scripted.address, request, timeouts=Timeouts(reconnect_seconds=5.0))
    stream = remote.open_rows(request, prefetch_bytes=100, counters=Counters())
    stream.start()

    with pytest.raises(InvalidRequest, match="too long"):
        take(stream)
    stream.close()


def test_what_arrived_before_an_error_is_delivered_first(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """Those rows are good; the error comes after them."""

    lost = grpc.StatusCode.DATA_LOSS
    scripted.scripts = [cut_after(1, lost)] + [refuse(lost, "dataset: changed")] * 8
    stream = open_stream()

    found: list[int] = []
    with pytest.raises(CorpusChanged):
        drain(stream, found)
    assert found == [0, 1, 2]


def test_a_server_that_is_busy_is_asked_again_after_the_time_it_names(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """A limit with a retry hint will pass."""
    hint = ("grpc-retry-pushback-ms", "50")
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "streams: 512 of 512 are in use", hint)
    scripted.scripts = [busy, busy]

    assert samples(open_stream()) == list(range(40))


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [("0", 0.0), ("9" * 9, 999_999.999)]
    + [(none, 1.0) for none in ("9" * 10, "9" * 400, "9" * 5000, "-1", "0.5", "")],
)
def test_a_hint_of_more_than_nine_digits_counts_as_absent(hint: str, seconds: float) -> None:
    """grpcio 1.85 reads 64 bits of it, others may hand on the text: it ends no feed."""

    class Refusal(grpc.RpcError):
        code = staticmethod(lambda: grpc.StatusCode.RESOURCE_EXHAUSTED)
        details = staticmethod(lambda: "streams: 512 of 512 are in use")

        def trailing_metadata(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(key="grpc-retry-pushback-ms", value=hint)]

    failure = error_from_rpc(Refusal(), "a:1")

    assert isinstance(failure, Busy)
    assert failure.retry_seconds == seconds


def test_a_proxy_that_is_busy_knows_no_hint_and_is_asked_again(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """What gRPC itself finds too large, with the same status, does not get smaller."""
    scripted.scripts = [refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")] * 2
    assert samples(open_stream()) == list(range(40))

    too_large = "CLIENT: Sent message larger than max (5 vs. 4)"
    scripted.scripts = [refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large)] * 2
    with pytest.raises(LimitExceeded, match="larger than max"):
        samples(open_stream())


def test_unimplemented_from_where_rows_came_before_is_a_proxy_and_waited_for(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """HTTP's 404 is that, as an ingress says it while the server behind it is replaced."""
    gone = refuse(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404")
    scripted.scripts = [cut_after(1), *[gone] * 3]

    assert samples(open_stream()) == list(range(40))


def test_another_identity_after_a_reconnect_is_refused_and_never_adopted(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """The identity is derived once; every later call expects it."""
    scripted.scripts = [cut_after(0), cut_after(0)]
    scripted.digest = b"d" * 32

    samples(open_stream())

    assert len({request.expected_identity for request in scripted.requests}) == 1
    assert len(scripted.requests[0].expected_identity) == 32
    assert {request.stream.sources[0].expected_digest for request in scripted.requests} == {
        scripted.digest
    }


def test_the_tokens_are_checked_against_the_described_fingerprint_and_not_the_frames(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """What was asked is part of what is checked."""
    scripted.fingerprint = bytes(32)
    stream = open_stream(reconnect_seconds=0.2)

    with pytest.raises(Unreachable, match="identity"):
        take(stream)


def test_a_dataset_has_to_be_named_where_several_are_served(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """Never the wrong corpus by chance."""
    scripted.datasets = 2

    with pytest.raises(InvalidRequest, match="name one of the served datasets"):
        take(open_stream())


def test_without_an_answer_the_error_in_the_end_names_the_server(
    scripted: ScriptedServer,
) -> None:
    """The address is in the message: most often it is wrong."""
    request = wanted(T, 2, 1)
    remote = Servers("localhost:1", request, timeouts=Timeouts(reconnect_seconds=0.3))
    stream = remote.open_rows(request, prefetch_bytes=100, counters=Counters())
    stream.start()

    with pytest.raises(Unreachable, match=r"localhost:1: no batches"):
        take(stream)
    stream.close()


def test_a_shorter_read_timeout_applies_at_once(scripted: ScriptedServer) -> None:
    """It was a minute while the servers were away, and is short again once rows come."""
    over = threading.Event()

    def silent(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(honest_frames(request))[1]
        over.wait(60)

    scripted.scripts = [honest, silent]
    request = wanted(T, 2, 20)
    timeouts = Timeouts(read_seconds=0.5, reconnect_seconds=90.0)
    remote = Servers(scripted.address, request, timeouts=timeouts)
    stream = remote.open_rows(request, prefetch_bytes=200, counters=Counters())
    stream._failover._timeout_seconds = 60.0
    stream.start()
    begun = time.monotonic()

    assert samples(stream) == list(range(40))

    assert time.monotonic() - begun < 5
    over.set()
    stream.close()
    remote.close()


def test_a_connection_that_was_left_is_closed(scripted: ScriptedServer) -> None:
    """grpcio keeps that of a cancelled call whose last events were not consumed."""
    scripted.scripts = [honest, *[cut_after(1), honest] * 10]
    with FaultProxy(scripted.address) as proxy:
        request = wanted(T, 2, 200)
        remote = Servers(proxy.address, request, timeouts=Timeouts(reconnect_seconds=10.0))
        stream = remote.open_rows(request, prefetch_bytes=200, counters=Counters())
        stream.start()

        assert samples(stream) == list(range(400))

        assert len(proxy.connections) > 5
        assert eventually(lambda: open_count(proxy) <= 2, 60)
        stream.close()
        remote.close()
        assert eventually(lambda: open_count(proxy) == 0, 60)


def open_count(proxy: FaultProxy) -> int:
    """How many connections of a proxy are open."""
    return sum(connection.client.fileno() >= 0 for connection in proxy.connections)


@pytest.mark.alone
def test_closing_ends_the_thread_although_no_server_answers() -> None:
    """A machine that accepts connections and says nothing must not hold up the end of a run."""
    with socket.create_server(("localhost", 0)) as black_hole:
        target = f"localhost:{black_hole.getsockname()[1]}"
        request = wanted(T, 2, 1)
        remote = Servers(target, request, timeouts=Timeouts(reconnect_seconds=None))
        stream = remote.open_rows(request, prefetch_bytes=100, counters=Counters())
        stream.start()
        connection, _ = black_hole.accept()

        begun = time.monotonic()
        remote.close()
        stream.close()

        assert time.monotonic() - begun < 5
        assert eventually(lambda: stream.ended)
        connection.close()


def test_closing_ends_the_thread_although_the_server_says_nothing(
    scripted: ScriptedServer, open_stream: OpenStream
) -> None:
    """Break out of a loop, and nothing stays behind."""
    stuck = threading.Event()
    reached = threading.Event()

    def silent(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        reached.set()
        stuck.wait(10)
        yield b""

    scripted.scripts = [silent, silent]
    stream = open_stream()
    assert reached.wait(5)

    stream.close()
    stream.close()

    assert eventually(lambda: stream.ended)
    assert take(stream) is None
    stuck.set()
