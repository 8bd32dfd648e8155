"""Would an asyncio server be better? A prototype that contains the real service.

benchmarks.many_streams compares it, for docs/decisions/0005-sync-server.md. It answers GetBatch
like the real server. A gather may wait for the disk, so frames are encoded in threads, as in a real
asyncio server. With --inline they are encoded in the event loop, which works only for a warm
corpus.
Run: python -m benchmarks.aio_server --data train.bin --port 0
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio

from tokenfeed.server.cli.serve import open_datasets
from tokenfeed.server.cli.serve_options import build_parser
from tokenfeed.server.datasets.warmup import WarmUp
from tokenfeed.server.rpc.activity.tracker import Activity
from tokenfeed.server.rpc.admission import AdmissionControl, Connection, StreamLimits, parse_message
from tokenfeed.server.rpc.frame_producer import EncodedFrame
from tokenfeed.server.rpc.service import TokenFeed
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import from_message

THREADS = 16
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1))


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    inline = "--inline" in words
    arguments = build_parser().parse_args([word for word in words if word != "--inline"])
    logging.basicConfig(stream=sys.stderr, level="INFO")
    datasets = open_datasets(arguments)
    feed = TokenFeed(
        datasets,
        AdmissionControl(StreamLimits()),
        AdmissionControl(StreamLimits()),
        Activity(),
        batch_bytes_max=arguments.max_batch_bytes,
        request_bytes_max=arguments.max_request_bytes,
    )
    warm_up = WarmUp(datasets.values(), arguments.warm_up_bytes)
    warm_up.start()
    asyncio.run(serve(feed, arguments.port, inline))
    warm_up.close()


async def serve(feed: TokenFeed, port: int, inline: bool) -> None:
    """Listen, print the address, and return after SIGTERM."""
    pool = ThreadPoolExecutor(THREADS)
    loop = asyncio.get_running_loop()

    def opened(message: bytes) -> Iterator[EncodedFrame]:
        """Return the frames of a call."""
        request, hints = from_message(parse_message(pb.GetBatchRequest, message))
        return feed._open(request, hints).frames(Connection(""))

    async def in_threads(message: bytes, _: object) -> AsyncIterator[bytes]:
        frames = opened(message)
        while (frame := await loop.run_in_executor(pool, next, frames, None)) is not None:
            yield frame.message

    async def in_loop(message: bytes, _: object) -> AsyncIterator[bytes]:
        for frame in opened(message):
            yield frame.message

    server = grpc.aio.server(options=OPTIONS)
    handler = grpc.unary_stream_rpc_method_handler(in_loop if inline else in_threads)
    name = pb.DESCRIPTOR.services_by_name["TokenFeed"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"GetBatch": handler}),)
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    print(f"listening on 127.0.0.1:{bound}", flush=True)
    await stopped.wait()
    await server.stop(0.5)


if __name__ == "__main__":
    main()
