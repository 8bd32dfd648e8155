"""grpc.reflection: the service that tools such as grpcurl call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.conftest import Serve, WriteTokens

METHOD = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000))


def test_reflection_describes_the_services_if_it_is_enabled(serve: Serve, corpus: Path) -> None:
    """Tools need no .proto file then; by default it is disabled."""
    with grpc.insecure_channel(serve("--data", corpus, "--reflection").address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "tokenfeed.v1.TokenFeed" in database.get_services()
        assert database.FindFileContainingSymbol("tokenfeed.v1.TokenFeed").package == "tokenfeed.v1"
    with grpc.insecure_channel(serve("--data", corpus).address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_without_a_request_take_no_thread_of_the_service(serve: Serve, corpus: Path) -> None:
    """100 of them were all that a server of four streams has."""
    timers = {
        "tokenfeed.server.rpc.admission.REQUEST_SECONDS": 6.0,
        "tokenfeed.server.rpc.admission.POLL_SECONDS": 0.1,
    }
    server = serve("--data", corpus, "--reflection", "--max-streams", "4", timers=timers)

    def nothing() -> Iterator[bytes]:
        assert never.wait(100)
        yield from ()

    never = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        idle = [channel.stream_stream(METHOD)(nothing()) for _ in range(100)]
        assert eventually_ended(idle, 100 - 8, seconds=6)
        assert channel.unary_unary("/tokenfeed.v1.TokenFeed/Describe")(b"", timeout=20)
        assert eventually_ended(idle, 100, seconds=60)
        never.set()
        assert "tokenfeed.v1.TokenFeed" in ProtoReflectionDescriptorDatabase(channel).get_services()


def eventually_ended(calls: list[grpc.Call], count: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while sum(not call.is_active() for call in calls) < count and time.monotonic() < end:
        time.sleep(0.05)
    return sum(not call.is_active() for call in calls) == count


def test_a_request_that_is_garbage_is_the_callers_error(serve: Serve, corpus: Path) -> None:
    with grpc.insecure_channel(serve("--data", corpus, "--reflection").address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.stream_stream(METHOD)(iter([b"\xff"])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
