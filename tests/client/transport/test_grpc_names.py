"""Names of grpcio that are not public, and are used all the same: each is looked for here, by name.

Where one is gone, the code goes on without it, and what it was used for is lost without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.client.conftest import ScriptedServer, honest_frames
from tests.server import requests
from tokenfeed.client.transport.channel import Channel
from tokenfeed.server.rpc.admission import run_in_pool

REQUEST = requests.batches(
    batch_size=2, context_length=4, order="random-1", num_batches=5, world_size=1
)


@pytest.fixture
def call(scripted: ScriptedServer) -> Iterator[grpc.Call]:
    channel = Channel(scripted.address)
    try:
        yield channel.get_batch(REQUEST)
    finally:
        channel.close()


def test_a_call_on_one_thread_has_consume_next_event(call: grpc.Call) -> None:
    """`drain_events` takes the end of a cancelled call by it; else its connection stays for
    minutes.
    """
    assert callable(call._consume_next_event)


def test_a_call_on_one_thread_has_state_due(call: grpc.Call) -> None:
    """`drain_events` sees by it what is still to come: all of it now, and nothing at the end."""
    assert call._state.due
    assert len(list(call)) == len(list(honest_frames(REQUEST)))
    assert not call._state.due


def test_the_option_single_threaded_unary_stream_is_heeded(call: grpc.Call) -> None:
    """By grpc.experimental.ChannelOptions: else a thread of gRPC's stands before each stream."""
    assert type(call).__name__ == "_SingleThreadedRendezvous"


def test_a_server_runs_a_method_in_its_experimental_thread_pool() -> None:
    """Health is answered by threads of its own; else streams may use up all that there are."""
    pool = ThreadPoolExecutor(1, "of-its-own")
    seen = []

    def method(_: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(threading.current_thread().name)
        return b""

    handler = grpc.unary_unary_rpc_method_handler(run_in_pool(pool, method))
    server = grpc.server(ThreadPoolExecutor(1, "of-the-server"))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"b": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary("/a/b")(b"", timeout=10)
    server.stop(None).wait()

    assert seen[0].startswith("of-its-own")
