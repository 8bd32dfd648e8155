"""A bare grpcio stream: 8 gathered batches a message, widened, without plan, checksum or threads.

What gRPC itself allows (https://grpc.io/docs/languages/python/basics/, server-side streaming).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from grpc.experimental import ChannelOptions

from benchmarks.peers.batch import ROW_TOKENS, B, counted, random_windows, widened

METHOD = "/bare.Feed/Get"
BATCHES = 8
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)


def serve(path: str) -> None:
    """Stream frames without end."""

    def frames(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        windows = random_windows(path)
        while True:
            yield b"".join([next(windows).data for _ in range(BATCHES)])

    handlers = {"Get": grpc.unary_stream_rpc_method_handler(frames)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Feed", handlers),))
    port = server.add_insecure_port("localhost:0")
    server.start()
    print(f"ready localhost:{port}", flush=True)
    server.wait_for_termination()


def take(source: str) -> Iterator[int]:
    """Read frames and widen their batches."""
    with grpc.insecure_channel(source, OPTIONS) as channel:
        frames = channel.unary_stream(METHOD)(b"")
        yield from counted(
            widened(batch)
            for frame in frames
            for batch in np.frombuffer(frame, np.uint16).reshape(BATCHES, B, ROW_TOKENS)
        )
