"""tokenfeed.v1.Provenance of a real server: who may ask, what is refused, what is logged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from client import NumpyBatches
from tests.conftest import Serve
from tests.server.datasets.provenance.corpora import (
    documents_in,
    finding,
    message_of,
    stream_of,
    tokens_at,
    write_documents,
)
from tests.support.packed_corpora import Corpus, random_lengths
from tests.support.waiting import eventually
from tokenfeed.server.rpc.admission import add_service
from tokenfeed.server.rpc.error_status import CallCounts, abort_on_error
from tokenfeed.server.rpc.provenance import Turns
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import stream_message

SERVICE = "tokenfeed.v1.Provenance"
Answer = TypeVar("Answer", bound=Message)
T, B = 16, 4


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_documents(tmp_path / "corpus", random_lengths(4, T), "ids")


def ask(
    address: str, method: str, request: Message | bytes, answer: type[Answer], token: str = ""
) -> Answer:
    message = request if isinstance(request, bytes) else request.SerializeToString()
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        return answer.FromString(call(message, timeout=10, metadata=metadata))


def locate(address: str, request: pb.LocateRequest | bytes, token: str = "") -> pb.LocateResponse:
    return ask(address, "Locate", request, pb.LocateResponse, token)


def refused(
    address: str, method: str, request: Message | bytes, token: str = ""
) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(address, method, request, pb.LocateResponse, token)
    return caught.value.code().name, caught.value.details()


@pytest.mark.parametrize("order", ["shuffled", "random", "packed", "padded"])
def test_a_batch_of_a_feed_is_found_in_the_files_and_back(
    serve: Serve, corpus: Corpus, order: str
) -> None:
    """The whole way: the rows of a feed, their tokens on the disk, and a document's samples."""
    server = serve(*corpus.words)
    with NumpyBatches(
        server.address, B, T, order=order, seed=7, num_batches=5, dtype="int32"
    ) as feed:
        rows = [row.tolist() for x, _ in feed for row in x]
    stream = stream_of(order)
    found = locate(server.address, pb.LocateRequest(rows=message_of(stream, batches=5))).rows

    assert len(found) == len(rows)
    for row, expected in zip(found, rows, strict=True):
        have = [
            token
            for one in row.ranges
            for token in tokens_at(corpus, one.file, one.first_token, one.end_token)
        ]
        assert (have + [0] * row.padding_tokens)[:T] == expected
    document = found[7].ranges[0].document
    file, first, end = documents_in(corpus)[document.number]
    assert (file, first, end) == (document.file, document.first_token, document.end_token)
    asked = finding(message_of(stream, end_sample=20), document=document.number)
    samples = ask(server.address, "Find", asked, pb.FindResponse).rows
    assert {one.sample for one in samples} == {
        row.sample
        for row in found
        if any(one.document.number == document.number for one in row.ranges)
    }
    spans = [pb.SampleSpan(first_sample=0, end_sample=20)]
    asked_coverage = pb.CoverageRequest(stream=stream_message(stream), samples=spans)
    covered = ask(server.address, "Coverage", asked_coverage, pb.CoverageResponse)
    assert covered.row_count == 20


def test_only_clients_with_a_token_may_ask(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    """Names and ids of documents are as confidential as the rows."""
    tokens = tmp_path / "tokens"
    tokens.write_text("client\n")
    server = serve(*corpus.words, "--token-file", tokens, "--host", "127.0.0.1")
    request = pb.LocateRequest(rows=message_of(stream_of("shuffled"), batches=1))

    for method in ("Locate", "Find", "Coverage"):
        assert refused(server.address, method, request)[0] == "UNAUTHENTICATED"
        assert refused(server.address, method, b"", "other")[0] == "UNAUTHENTICATED"
    assert len(locate(server.address, request, "client").rows) == B


def test_a_server_can_be_told_to_say_nothing(serve: Serve, corpus: Corpus) -> None:
    """--no-locate: the service is not there, neither called nor listed."""
    request = pb.LocateRequest(rows=message_of(stream_of("shuffled"), batches=1))
    for options, is_there in (((), True), (("--no-locate",), False)):
        server = serve(*corpus.words, "--reflection", *options)
        with grpc.insecure_channel(server.address) as channel:
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert (SERVICE in services) == is_there
        if not is_there:
            for method in ("Locate", "Find", "Coverage"):
                assert refused(server.address, method, request)[0] == "UNIMPLEMENTED"


def test_who_asked_is_in_the_log(serve: Serve, corpus: Corpus) -> None:
    """For an audit; a name cannot forge a line."""
    server = serve(*corpus.words)
    rows = message_of(stream_of("shuffled"), batches=1)
    rows.client_name = "auditor\nprovenance asked peer=other"
    locate(server.address, pb.LocateRequest(rows=rows))
    spans = [pb.SampleSpan(end_sample=1)]
    for method, asked in (
        ("Find", finding(rows, document=0, client_name=rows.client_name)),
        (
            "Coverage",
            pb.CoverageRequest(stream=rows.stream, samples=spans, client_name=rows.client_name),
        ),
    ):
        ask(server.address, method, asked, pb.LocateResponse)

    lines = [line for line in server.stderr.splitlines() if "provenance asked" in line]
    for line, method in zip(lines, ("Locate", "Find", "Coverage"), strict=True):
        assert f"client='auditorprovenance asked peer=other' method={method} dataset=train" in line
        assert "peer=ipv" in line


def test_hostile_requests_are_refused_in_one_sentence(serve: Serve, corpus: Corpus) -> None:
    """And the server goes on."""
    server = serve(*corpus.words)
    everything = message_of(stream_of("shuffled"), end_sample=2**63, batch_size=2**20)

    assert 1 <= len(locate(server.address, pb.LocateRequest(rows=everything)).rows) <= 4096
    whole = pb.FileRange(file=0, end_token=sum(corpus.lengths[0]))
    asked = finding(everything, range=whole)
    assert ask(server.address, "Find", asked, pb.FindResponse).HasField("next_candidate")
    asked.first_candidate = 2**64 - 1
    assert not ask(server.address, "Find", asked, pb.FindResponse).rows
    for method, request, status in (
        ("Locate", b"\xff\xff", "INVALID_ARGUMENT"),
        ("Locate", b"", "INVALID_ARGUMENT"),
        ("Find", b"", "INVALID_ARGUMENT"),
        ("Coverage", b"", "INVALID_ARGUMENT"),
        ("Coverage", pb.CoverageRequest(stream=everything.stream), "INVALID_ARGUMENT"),
        ("Find", finding(everything, document_id="a\nb\x1b"), "NOT_FOUND"),
        ("Find", finding(everything, document_id="x" * 60_000), "NOT_FOUND"),
        ("Find", finding(everything, document=2**64 - 1), "NOT_FOUND"),
        # An unknown field, number 9 of LocateRequest.
        ("Locate", b"\x48\x01", "INVALID_ARGUMENT"),
    ):
        code, details = refused(server.address, method, request)
        assert code == status, details
        assert details.isprintable()
        assert len(details) < 500
    assert "Traceback" not in server.stderr


def test_a_draining_server_admits_no_more_questions(serve: Serve, corpus: Corpus) -> None:
    """It ends in time, like all its services."""
    server = serve(*corpus.words)
    request = pb.LocateRequest(rows=message_of(stream_of("shuffled"), batches=1))
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Locate")
        call(request.SerializeToString(), timeout=10)
        server.process.terminate()

        def is_refused() -> bool:
            try:
                call(request.SerializeToString(), timeout=5)
            except grpc.RpcError as error:
                return bool(error.code() is grpc.StatusCode.UNAVAILABLE)
            return False

        assert eventually(is_refused)
    assert server.process.wait(timeout=10) == 0


METHOD = f"/{SERVICE}/Locate"


@dataclass(eq=False)
class Held:
    """A server whose calls take their turns, and stay until they are released."""

    turns: Turns
    channel: grpc.Channel
    release: threading.Event = field(default_factory=threading.Event)
    began_at: list[float] = field(default_factory=list)

    def answer(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with abort_on_error(context, CallCounts()), self.turns.take(context):
            self.began_at.append(time.monotonic())
            self.release.wait(10)
            return b"answer"
        return b""

    def ask(self, seconds: float = 10.0) -> grpc.Future:
        return self.channel.unary_unary(METHOD).future(b"", timeout=seconds)


@pytest.fixture
def held() -> Iterator[Held]:
    turns = Turns(lambda: True)
    server = grpc.server(ThreadPoolExecutor(8))
    port = server.add_insecure_port("127.0.0.1:0")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        held = Held(turns, channel)
        add_service(
            server, SERVICE, {"Locate": (grpc.stream_unary_rpc_method_handler, held.answer)}, 8
        )
        server.start()
        yield held
        held.release.set()
        turns.close()
        server.stop(None).wait()


def test_questions_are_answered_one_at_a_time(held: Held) -> None:
    """Each holds the interpreter, which streams need."""
    calls = [held.ask() for _ in range(3)]
    assert eventually(lambda: held.turns.waiting == 3)
    assert len(held.began_at) == 1

    held.release.set()
    assert [call.result() for call in calls] == [b"answer"] * 3


def test_a_call_that_ends_waits_no_longer(held: Held) -> None:
    """By its deadline or its caller: the next one must not wait behind it."""
    first = held.ask()
    assert eventually(lambda: len(held.began_at) == 1)
    late, cancelled = held.ask(0.2), held.ask()
    assert eventually(lambda: held.turns.waiting == 3)

    cancelled.cancel()
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert eventually(lambda: held.turns.waiting == 1)
    held.release.set()
    assert first.result() == b"answer"
    assert len(held.began_at) == 1


def test_a_drain_ends_the_waiting(held: Held) -> None:
    """A shutdown does not wait for a queue of questions; the one that computes is answered."""
    first = held.ask()
    assert eventually(lambda: len(held.began_at) == 1)
    waiting = held.ask()
    assert eventually(lambda: held.turns.waiting == 2)

    held.turns.close()
    assert waiting.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in waiting.details()
    held.release.set()
    assert first.result() == b"answer"


@pytest.mark.parametrize("is_streaming", [False, True])
def test_streams_have_the_processor_after_an_answer(is_streaming: bool) -> None:
    """Without streams nothing is waited for."""
    turns = Turns(lambda: is_streaming)
    ends = []

    def answer(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with turns.take(context):
            began, began_at = time.thread_time(), time.monotonic()
            while time.thread_time() - began < 0.1:
                pass
            ends.append((began_at, time.monotonic()))
        return b""

    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    add_service(server, SERVICE, {"Locate": (grpc.stream_unary_rpc_method_handler, answer)}, 2)
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(5):
            channel.unary_unary(METHOD)(b"", timeout=10)
    server.stop(None).wait()
    pauses = [begin - end for (_, end), (begin, _) in pairwise(ends)]
    # Each is of 0.4 s. Without streams another process may pause one of them.
    assert (min(pauses) >= 0.39) == is_streaming


def test_questions_leave_most_of_a_core_to_an_open_stream(serve: Serve, corpus: Corpus) -> None:
    """A loop of them brought streams to a tenth of their speed."""
    server = serve(*corpus.words)
    request = pb.LocateRequest(rows=message_of(stream_of("shuffled"), end_sample=2**40))
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(METHOD)

        # It is not read on, so its call stays open.
        stream = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        unread = stream(request.rows.SerializeToString(), timeout=60)
        next(unread)
        began, worked = time.monotonic(), processor_seconds(server.process.pid)
        for _ in range(20):
            assert len(call(request.SerializeToString(), timeout=10)) > 10_000
        seconds, worked = time.monotonic() - began, processor_seconds(server.process.pid) - worked
        # Of processor time: on a busy machine an answer takes longer, and the pause does not.
        assert seconds > 2.5 * worked
        unread.cancel()


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_caller_that_sends_nothing_is_soon_gone(serve: Serve, corpus: Corpus) -> None:
    """It has the calls of everybody behind its address."""
    server = serve(*corpus.words)
    silent = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        # Five at once and no other call: one that asked whether four have come would itself be
        # one of the four, and the last silent one the call that is refused.
        calls = [channel.stream_unary(METHOD).future(waiting_for(silent)) for _ in range(5)]
        try:
            # By then the other four have arrived.
            assert eventually(lambda: any(call.done() for call in calls))
            began = time.monotonic()
            ended = sorted((call.code().name, call.details()) for call in calls)
            assert [code for code, _ in ended] == ["CANCELLED"] * 4 + ["RESOURCE_EXHAUSTED"]
            assert "limit of 4 calls for one address" in ended[-1][1]
            assert time.monotonic() - began < 8
        finally:
            silent.set()


def waiting_for(event: threading.Event) -> Iterator[bytes]:
    """Yield nothing, once the event is set or 15 s have passed: an empty request, not CANCELLED."""
    event.wait(15)
    yield from ()
