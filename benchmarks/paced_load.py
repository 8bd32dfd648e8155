"""The load of benchmarks.many_streams: streams that consume at a fixed rate, in one process.

Prints one line of JSON: the waits of each stream in seconds, from the time a batch was due until it
arrived. The first wait includes the connection. This is not a benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.serving import CHANNEL_OPTIONS, METHOD, stream
from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport import channel as client_channel
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire import frame
from tokenfeed.wire.request import Request

BATCH_SIZE = 8
CONTEXT_LENGTH = 1024


def main() -> None:
    """Consume batches, and print the waits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--first", type=int, required=True, help="number of the first stream")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--start", type=float, required=True, help="by the monotonic clock")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True, help="batches a second")
    parser.add_argument("--client", action="store_true", help="the real client, which prefetches")
    arguments = parser.parse_args()
    read = client_batches if arguments.client else bare_batches

    def consume(number: int) -> list[float]:
        phase = float(np.random.default_rng(number).random()) / arguments.rate
        batches = read(arguments.address, number)
        return waits(batches, arguments.start + phase, arguments.seconds, arguments.rate)

    with ThreadPoolExecutor(arguments.streams) as threads:
        numbers = range(arguments.first, arguments.first + arguments.streams)
        print(json.dumps(list(threads.map(consume, numbers))))


def waits(batches: Iterator[None], start: float, seconds: float, rate: float) -> list[float]:
    """Take a batch whenever one is due, until the time is over; return the wait for each."""
    waited = []
    for index in range(int(seconds * rate)):
        due = start + index / rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        next(batches)
        waited.append(time.monotonic() - due)
        if time.monotonic() > start + seconds:
            break
    return waited


def bare_batches(address: str, number: int) -> Iterator[None]:
    """Take batches from one endless call, which is read only when a batch is due."""
    request = stream(batch_size=BATCH_SIZE, context_length=CONTEXT_LENGTH, seed=number)
    with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        call = channel.unary_stream(METHOD)(request.SerializeToString())
        rows = 0
        for message in call:
            rows += frame.decode(message).row_count
            while rows >= BATCH_SIZE:
                rows -= BATCH_SIZE
                yield None


_OWN_CONNECTION = threading.Lock()


def client_batches(address: str, number: int) -> Iterator[None]:
    """Take batches by the project's client, as RemoteBatches does, over its own connection."""
    with _OWN_CONNECTION:
        option = ("grpc.use_local_subchannel_pool", 1)
        if option not in client_channel._OPTIONS:
            client_channel._OPTIONS = (*client_channel._OPTIONS, option)
    order = orders.find("random-1")
    asked = Stream.of_dataset("", order, number, CONTEXT_LENGTH)
    request = Request(asked, Position(0, BATCH_SIZE))
    remote = Servers(address, request, timeouts=Timeouts(reconnect_seconds=60.0))
    received = remote.open_rows(request, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
    received.start()
    try:
        while received.peek(BATCH_SIZE) is not None:
            received.consume(BATCH_SIZE)
            yield None
    finally:
        received.close()
        remote.close()


if __name__ == "__main__":
    main()
