"""A scripted server that speaks the real wire, for what a healthy server never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest

from tokenfeed import frame, identity, orders
from tokenfeed.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb

FINGERPRINT = bytes(range(32))
Script = Callable[[pb.GetBatchRequest, grpc.ServicerContext], Iterator[bytes]]


def honest_frames(
    request: pb.GetBatchRequest, rows_per_frame: int = 3
) -> Iterator[tuple[int, bytes]]:
    """What an honest server answers, as (row count, frame); a row begins with its sample."""
    position = Position(
        request.first_sample, request.batch_size, request.rank, request.world_size or 1
    )
    stream = identity.stream_identity(
        orders.find(request.order), request.seed, request.context_length, FINGERPRINT
    )
    row, end_row = request.first_row, request.num_batches * request.batch_size
    while row < end_row:
        count = min(rows_per_frame, end_row - row)
        rows = np.zeros((count, request.context_length + 1), dtype="<u2")
        rows[:, 0] = position.samples(row, count) % 65_536
        tokens = rows.view(np.uint8).reshape(-1)
        yield count, frame.encode(stream, position, row, count, 2, tokens)
        row += count


def honest(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Answer as asked."""
    for _, message in honest_frames(request):
        yield message


@dataclass
class ScriptedServer:
    """Plays one script a call, in turn, then is honest. Remembers what it was asked."""

    scripts: list[Script] = field(default_factory=list)
    requests: list[pb.GetBatchRequest] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    described: int = 0
    fingerprint: bytes = FINGERPRINT
    digest: bytes = b""
    datasets: int = 1
    windows_per_epoch: int | None = None
    address: str = ""

    def get_batch(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = pb.GetBatchRequest.FromString(message)
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
            windows_per_epoch=self.windows_per_epoch,
        )
        return pb.DescribeResponse(datasets=[dataset] * self.datasets).SerializeToString()


def start_server(address: str = "127.0.0.1:0") -> tuple[ScriptedServer, grpc.Server]:
    """Start a scripted server, on a free port unless told otherwise."""
    script = ScriptedServer()
    handlers = {
        "GetBatch": grpc.unary_stream_rpc_method_handler(script.get_batch),
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
