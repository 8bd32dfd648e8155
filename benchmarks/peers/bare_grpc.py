"""A bare gRPC stream, the limit: frames made in advance, endless, widened by the client.

This is what tokenfeed would reach if planning, gathering, checksums and delivery cost nothing.
Source: grpc.io/docs/guides/performance (Python: one stream instead of many calls, the sync API's
single-threaded unary stream), and the measurements for client/transport/channel.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import torch
from grpc.experimental import ChannelOptions

from benchmarks.contender import ONE_SETTING, main, serving
from benchmarks.rows import BATCH_SIZE, FRAME_BATCHES, ROW_TOKENS, prepared_rows
from benchmarks.widen import widen

SETTINGS = ONE_SETTING

_SERVICE, _METHOD = "bench.Bare", "Frames"
_CLIENT_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)


@contextmanager
def batches(path: Path) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    with serving("benchmarks.peers.bare_grpc", "--serve", "--data", str(path)) as address:
        channel = grpc.insecure_channel(address, _CLIENT_OPTIONS)
        frames: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{_SERVICE}/{_METHOD}"
        )
        call = frames(b"")
        try:
            yield _widened(call)
        finally:
            call.cancel()
            channel.close()


def _widened(frames: Iterator[bytes]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for frame in frames:
        for rows in np.frombuffer(frame, np.uint16).reshape(-1, BATCH_SIZE, ROW_TOKENS):
            yield widen(rows)


def serve(path: Path) -> None:
    """Send frames to every caller, until terminated."""
    frames = [rows.tobytes() for rows in prepared_rows(path, FRAME_BATCHES)]
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(
        lambda _, __: itertools.cycle(frames)
    )
    server = grpc.server(
        ThreadPoolExecutor(2),
        handlers=[grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(batches, SETTINGS, serve=serve)
