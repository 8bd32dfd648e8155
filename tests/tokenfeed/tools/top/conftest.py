"""A server that answers GetStatus as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from tests.support.statuses import dataset, status, stream
from tokenfeed.v1 import status_pb2 as pb


@dataclass
class ScriptedStatus:
    """Answers GetStatus with what it was told, on the real wire.  tokens: those it was sent."""

    answer: pb.GetStatusResponse = field(default_factory=status)
    refusal: grpc.StatusCode | None = None
    problem: str = "authorization: the status needs a token of operators"
    tokens: list[str] = field(default_factory=list)
    address: str = ""

    def get_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        self.tokens.append(str(metadata.get("authorization", "")))
        if self.refusal is not None:
            context.abort(self.refusal, self.problem)
        return self.answer.SerializeToString()


Start = Callable[..., tuple[ScriptedStatus, grpc.Server]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that answer GetStatus as they are told; stopped after the test."""
    servers: list[grpc.Server] = []

    def start_one(port: int = 0) -> tuple[ScriptedStatus, grpc.Server]:
        scripted = ScriptedStatus()
        method = grpc.unary_unary_rpc_method_handler(scripted.get_status)
        handlers = [
            grpc.method_handlers_generic_handler("tokenfeed.v1.Status", {"GetStatus": method})
        ]
        server = grpc.server(ThreadPoolExecutor(2), handlers, options=(("grpc.so_reuseport", 0),))
        scripted.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        servers.append(server)
        return scripted, server

    yield start_one
    for server in servers:
        server.stop(0).wait()


@pytest.fixture
def scripted(start: Start) -> ScriptedStatus:
    """A server with five clients, one of them stalled."""
    found, _ = start()
    found.answer = status(
        datasets=[dataset("web"), dataset("code", resident_share=0.5)],
        streams=[
            *(stream("llama", rank, 4) for rank in range(4)),
            stream("stuck", idle_seconds=17.0, waits_for_client=1.0, tokens_per_second=0.0),
        ],
        second_bytes=[2 << 20] * 60,
        bytes_per_second=1 << 20,
        streams_open=5,
    )
    return found
