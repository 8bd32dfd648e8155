"""A scripted server that speaks the real wire, for what a healthy server never does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest

from tests.support.frames import encode
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import CONTRACT_REVISION, Request, from_message
from tokenfeed.wire.row_block import RowBlock

FINGERPRINT = bytes(range(32))


def wanted(
    context_length: int, batch_size: int, num_batches: int | None = None, dataset: str = ""
) -> Request:
    """What a feed of random windows asks for, seed 7, on rank 0 of 1."""
    stream = Stream.of_dataset(dataset, orders.find("random-1"), 7, context_length)
    return Request(stream, Position(0, batch_size), num_batches=num_batches)


Message = pb.GetBatchRequest | pb.GetRowsRequest
Script = Callable[[Message, grpc.ServicerContext], Iterator[bytes]]


def honest_frames(request: Message, rows_per_frame: int = 3) -> Iterator[tuple[int, bytes]]:
    """What an honest server answers, as (row count, frame); a row begins with its sample."""
    asked, _ = from_message(request)
    known = asked.stream.known({0: Corpus(FINGERPRINT)})
    row, row_tokens = asked.first_row, known.row_tokens
    frames = frame.Frames(
        row_tokens, asked.position, known.identity(asked.position.sample_of(row)), {}
    )
    while row < asked.end_row:
        count = min(rows_per_frame, asked.end_row - row)
        tokens = np.zeros((count, row_tokens), dtype="<u2")
        tokens[:, 0] = asked.position.samples(row, count) % 65_536
        (message,) = encode(frames, row, RowBlock(tokens))
        yield count, message
        row += count


def honest(request: Message, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Answer as asked."""
    for _, message in honest_frames(request):
        yield message


@dataclass
class ScriptedServer:
    """Plays one script a call, in turn, then is honest. Remembers what it was asked."""

    scripts: list[Script] = field(default_factory=list)
    requests: list[Message] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    described: int = 0
    fingerprint: bytes = FINGERPRINT
    digest: bytes = b""
    datasets: int = 1
    windows_per_epoch: int = 1 << 20
    longest_file_tokens: int = 0
    document_rows: Callable[[pb.DescribeRequest], pb.OrderRows] | None = None
    contract_revisions: Sequence[int] = (CONTRACT_REVISION,)
    clock_ahead_seconds: float = 0.0
    address: str = ""

    def get_batch(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return self._play(pb.GetBatchRequest.FromString(message), context)

    def get_rows(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return self._play(pb.GetRowsRequest.FromString(message), context)

    def _play(self, request: Message, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.requests.append(request)
        self.peers.append(context.peer())
        script = self.scripts.pop(0) if self.scripts else honest
        yield from script(request, context)

    def describe(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self.described += 1
        dataset = pb.Dataset(
            name="train",
            token_bytes=2,
            fingerprint=self.fingerprint,
            digest=self.digest,
            longest_file_tokens=self.longest_file_tokens,
        )
        for order in ("shuffled-1", "sequential-1"):
            dataset.rows.add(order=order, rows=self.windows_per_epoch)
        request = pb.DescribeRequest.FromString(message)
        if request.order and self.document_rows is not None:
            dataset.rows.append(self.document_rows(request))
            dataset.planes.add(kind=50, fingerprint=bytes(32))
        response = pb.DescribeResponse(
            orders=[*orders.ORDERS],
            datasets=[dataset] * self.datasets,
            contract_revisions=self.contract_revisions,
        )
        response.server_time_ms = int(1000 * (time.time() + self.clock_ahead_seconds))
        return response.SerializeToString()


def start_server(address: str = "127.0.0.1:0") -> tuple[ScriptedServer, grpc.Server]:
    """Start a scripted server, on a free port unless told otherwise."""
    script = ScriptedServer()
    handlers = {
        "GetBatch": grpc.unary_stream_rpc_method_handler(script.get_batch),
        "GetRows": grpc.unary_stream_rpc_method_handler(script.get_rows),
        "Describe": grpc.unary_unary_rpc_method_handler(script.describe),
    }
    server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tokenfeed.v1.TokenFeed", handlers),)
    )
    port = server.add_insecure_port(address)
    script.address = address.replace(":0", f":{port}")
    server.start()
    return script, server


StartScripted = Callable[..., ScriptedServer]


@pytest.fixture
def start_scripted() -> Iterator[StartScripted]:
    """Start scripted servers that are stopped after the test."""
    servers: list[grpc.Server] = []

    def start(address: str = "127.0.0.1:0") -> ScriptedServer:
        script, server = start_server(address)
        servers.append(server)
        return script

    yield start
    for server in servers:
        server.stop(0).wait()


@pytest.fixture
def scripted(start_scripted: StartScripted) -> ScriptedServer:
    """A scripted server on a free port."""
    return start_scripted()
