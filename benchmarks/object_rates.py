"""How fast are rows of an object store: from its cache, by GETs, and beside other streams?

Each line of the table compares two things, measured alternately: rows out of a warm cache against
those of a local file; a stream of exact GETs against a bare pool of obstore with as many threads; a
local stream beside remote ones that take all they get, against alone; 15 streams at a pace beside a
greedy one, against without it; and a local file that is not in memory, in order blocks against
shuffled. The store is a process of this module, next door or 20 ms away. Server, streams and store
share the processors, so a local stream at full speed loses what the others use; one at a pace is
shown too. Decides IN_FLIGHT_MAX in server/storage/objects/fetcher.py.
Run: python -m benchmarks.object_rates [--rounds 3] [--seconds 1.5] [--only cache,gets]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import obstore
from obstore.store import S3Store

from benchmarks.contender import serving
from benchmarks.report import heading, print_load
from benchmarks.rows import ROW_TOKENS
from benchmarks.serving import drop, folder_on_disk, frame_sizes, served, stream, write_corpus
from client import NumpyBatches
from tests.support.object_server import s3_at
from tokenfeed.server.storage.objects.fetcher import IN_FLIGHT_MAX
from tokenfeed.server.storage.objects.slab import size_of

ROW_BYTES = 2 * ROW_TOKENS
DELAYS_MS = (0.0, 20.0)
OBJECTS = {"small.bin": 1 << 28, "large.bin": 1 << 33}
COLD_BYTES = 1 << 32
GROUP_BLOCKS = 256
RAW = ("--format", "raw", "--dtype", "uint16")
SLOW_STREAMS, SLOW_PACE, LOCAL_PACE = 15, 4.0, 100.0
"""Batches of 32 x 2048 a second: 0.26 million tokens for each slow stream, 6.6 for a local one."""
SLOW_PREFETCH_BYTES = 1 << 19
GREEDY_STREAMS = 4
SETTLE_SECONDS = 0.7
_PIECE_BYTES = 1 << 24


class Figures(NamedTuple):
    """What streams get.  rate: thousand rows a second.  late_ms: how late 99 % of the batches of
    streams at a pace are at most; 0 of others.
    """

    rate: float
    late_ms: float = 0.0


Measure = Callable[[int], Figures]
"""Measures in a round, given its number."""
Pair = tuple[str, float, Measure, Measure]
"""A title, the goal of the ratio (0: none), what is compared with, and ours."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--only", default=",".join(PAIRS), help="comparisons, with commas between")
    for name in ("--store", "--streams"):  # what this module starts
        parser.add_argument(name, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.store:
        asyncio.run(run_store(float(arguments.store[0]) / 1e3))
    elif arguments.streams:
        address, dataset, *numbers = arguments.streams
        print(json.dumps(streams(address, dataset, *map(float, numbers))))
    else:
        compare(arguments.rounds, arguments.seconds, arguments.only.split(","))


def compare(rounds: int, seconds: float, names: list[str]) -> None:
    """Measure and print the comparisons of these names."""
    began = time.monotonic()
    print_load("before")
    print(heading("thousand rows of 2,049 tokens a second"))
    print(f"{'':56} {'ms':>3} {'against':>8} {'ours':>8} {'ratio':>6} {'lowest':>6} {'goal':>5}")
    with folder_on_disk() as folder:
        os.environ["XDG_CACHE_HOME"] = str(folder)
        for delay_ms in DELAYS_MS:
            with store_away(delay_ms) as endpoint:
                for name in names:
                    if name == "cold" and delay_ms:  # it has no store
                        continue
                    with PAIRS[name](folder, endpoint, seconds) as pairs:
                        for title, goal, against, ours in pairs:
                            found = [(against(one), ours(one)) for one in range(rounds)]
                            print_line(title, delay_ms, goal, found)
    print_load("after")
    print(f"took {time.monotonic() - began:.0f} s")


def print_line(
    title: str, delay_ms: float, goal: float, found: list[tuple[Figures, Figures]]
) -> None:
    """Print medians of the rounds, and the median and the lowest of their ratios."""
    rates = [statistics.median(pair[side].rate for pair in found) for side in (0, 1)]
    ratios = [ours.rate / against.rate for against, ours in found]
    late = [statistics.median(pair[side].late_ms for pair in found) for side in (0, 1)]
    figures = f"{rates[0]:8.2f} {rates[1]:8.2f} {statistics.median(ratios):6.2f}"
    figures += f" {min(ratios):6.2f} {f'{goal:.2f}' if goal else '':>5}"
    text = f"  late: {late[0]:.0f} and {late[1]:.0f} ms" if any(late) else ""
    print(f"{title:56} {delay_ms:3.0f} {figures}{text}", flush=True)


# --- what is compared ---


@contextmanager
def cache_and_file(folder: Path, _: str, seconds: float) -> Iterator[list[Pair]]:
    """Lend rows out of a cache that has all blocks, against a file in memory."""
    size_bytes = OBJECTS["small.bin"]
    slots = str(size_of(2 * (size_bytes >> 20)))
    cache = ("--object-cache", folder / "cache", "--object-cache-bytes", slots)
    with (
        served("--data", f"train={local_file(folder)}", *RAW) as local,
        served("--data", "train=s3://bucket/small.bin", *RAW, *cache) as cached,
    ):
        local.wait_for_log("warm-up ended")
        if f"cached={size_bytes >> 20} " not in cached.log:
            streams(cached.address, "", 1, 0, seconds)
            cached.wait_for_log(f"filled blocks={size_bytes >> 20} of")
        yield [
            (
                "one stream: a warm cache / a local file in memory",
                0.95,
                lambda _: streams(local.address, "", 1, 0, seconds),
                lambda _: streams(cached.address, "", 1, 0, seconds),
            )
        ]


@contextmanager
def gets_and_pool(_: Path, endpoint: str, seconds: float) -> Iterator[list[Pair]]:
    """Lend a stream without a cache, against threads that do nothing but GETs."""
    with served("--data", "train=s3://bucket/large.bin", *RAW, "--object-cache", "none") as server:
        yield [
            (
                f"one stream: exact GETs / {IN_FLIGHT_MAX} threads with obstore alone",
                0,
                partial(pool, endpoint, seconds),
                lambda _: streams(server.address, "", 1, 0, seconds),
            )
        ]


@contextmanager
def local_beside_remote(folder: Path, _: str, seconds: float) -> Iterator[list[Pair]]:
    """Lend a local stream of a server which has remote ones, against alone."""
    data = ("--data", f"local={local_file(folder)}", "--data", "remote=s3://bucket/large.bin")
    with served(*data, *RAW, "--object-cache", "none") as server:
        server.wait_for_log("warm-up ended")

        def measured(pace: float, number: int, *, beside: bool) -> Figures:
            del number
            if not beside:
                return streams(server.address, "local", 1, pace, seconds)
            with greedy(server.address, "remote", GREEDY_STREAMS, seconds):
                return streams(server.address, "local", 1, pace, seconds)

        yield [
            (
                f"a local stream {name}: beside {GREEDY_STREAMS} remote / alone",
                0.9,
                partial(measured, pace, beside=False),
                partial(measured, pace, beside=True),
            )
            for name, pace in (("at a pace", LOCAL_PACE), ("at full speed", 0.0))
        ]


@contextmanager
def slow_beside_greedy(_: Path, __: str, seconds: float) -> Iterator[list[Pair]]:
    """Lend streams at a pace beside one that takes all it gets, against without it."""
    with served("--data", "train=s3://bucket/large.bin", *RAW, "--object-cache", "none") as server:
        slow = partial(streams, server.address, "", SLOW_STREAMS, SLOW_PACE, 2 * seconds)

        def beside(_: int) -> Figures:
            with greedy(server.address, "", 1, 2 * seconds):
                return slow()

        title = f"{SLOW_STREAMS} remote streams at a pace: beside a greedy one / without"
        yield [(title, 0.9, lambda _: slow(), beside)]


@contextmanager
def cold_orders(folder: Path, _: str, seconds: float) -> Iterator[list[Pair]]:
    """Lend a file that is not in memory, in order blocks against shuffled."""
    corpus = write_corpus(folder / "cold.bin", COLD_BYTES)

    def measured(order: str, number: int) -> Figures:
        with served("--data", f"train={corpus}", *RAW, "--warm-up-bytes", "0") as server:
            drop([corpus])
            return streams(server.address, "", 1, 0, seconds, order, number)

    title = "one stream of a cold local file: blocks / shuffled"
    yield [(title, 0, partial(measured, "shuffled-1"), partial(measured, "blocks-1"))]
    corpus.unlink()


PAIRS: dict[str, Callable[[Path, str, float], Any]] = {
    "cache": cache_and_file,
    "gets": gets_and_pool,
    "local": local_beside_remote,
    "greedy": slow_beside_greedy,
    "cold": cold_orders,
}


def local_file(folder: Path) -> Path:
    """Return a file as large as the small object."""
    path = folder / "small.bin"
    return path if path.exists() else write_corpus(path, OBJECTS["small.bin"])


# --- who reads ---


def streams(
    address: str,
    dataset: str,
    count: float,
    pace: float,
    seconds: float,
    order: str = "shuffled-1",
    seed: int = 0,
) -> Figures:
    """Return what streams get over some seconds, after they have settled.

    count: of streams.  pace: batches a second that each takes by our client; 0: frames, as fast as
    they come.  seed: of the first one.
    """
    begin = time.monotonic() + SETTLE_SECONDS
    end = begin + seconds

    def received(number: int) -> tuple[float, list[float]]:
        if pace:
            start = begin - SETTLE_SECONDS + number / int(count) / pace
            return batches_at_a_pace(address, dataset, seed + number, pace, (start, begin, end))
        request = stream(dataset, order=order, seed=seed + number)
        if order == "blocks-1":
            request.stream.sources[0].group_blocks = GROUP_BLOCKS
        size_bytes = 0
        for size in frame_sizes(address, request):
            now = time.monotonic()
            size_bytes += size if now >= begin else 0
            if now >= end:
                break
        return size_bytes / ROW_BYTES, []

    with ThreadPoolExecutor(int(count)) as threads:
        found = list(threads.map(received, range(int(count))))
    late = [each for _, times in found for each in times]
    rate = sum(rows for rows, _ in found) / seconds / 1e3
    return Figures(rate, 1e3 * float(np.quantile(late, 0.99)) if late else 0.0)


def batches_at_a_pace(
    address: str, dataset: str, seed: int, pace: float, times: tuple[float, float, float]
) -> tuple[float, list[float]]:
    """Return the rows of a feed that takes a batch when one is due, and how late each was.

    times: of the first batch, and between which ones it counts, by time.monotonic.
    """
    options: dict[str, Any] = {"order": "shuffled", "seed": seed, "rank": 0, "world_size": 1}
    options |= {"dataset": dataset} if dataset else {}
    due, begin, end = times
    late = []
    with NumpyBatches(address, 32, 2048, prefetch_bytes=SLOW_PREFETCH_BYTES, **options) as feed:
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            next(feed)
            now = time.monotonic()
            if begin <= now < end:
                late.append(now - due)
            due = max(due + 1 / pace, now)  # who was late does not hurry
    return 32.0 * len(late), late


@contextmanager
def greedy(address: str, dataset: str, count: int, seconds: float) -> Iterator[None]:
    """Run streams in a process of their own that take all they get, for longer than is measured."""
    words = [sys.executable, "-m", "benchmarks.object_rates", "--streams", address, dataset]
    words += [str(count), "0", str(seconds + 60)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1.5)  # its imports, and until it has all that it gets
        yield
    finally:
        process.kill()
        process.wait()


def pool(endpoint: str, seconds: float, seed: int) -> Figures:
    """Return what threads get which do nothing but GETs of the size of a row."""
    store = S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True})
    begin = time.monotonic() + SETTLE_SECONDS
    end = begin + seconds

    def gets(number: int) -> int:
        random = np.random.default_rng((seed, number))
        count, rows = 0, OBJECTS["large.bin"] // ROW_BYTES
        while (now := time.monotonic()) < end:
            first = int(random.integers(0, rows)) * ROW_BYTES
            obstore.get_range(store, "large.bin", start=first, length=ROW_BYTES)
            count += now >= begin
        return count

    with ThreadPoolExecutor(IN_FLIGHT_MAX) as threads:
        return Figures(sum(threads.map(gets, range(IN_FLIGHT_MAX))) / seconds / 1e3)


# --- the store ---


@contextmanager
def store_away(delay_ms: float) -> Iterator[str]:
    """Run a store, which s3:// leads to, and yield its address."""
    with serving("benchmarks.object_rates", "--store", str(delay_ms)) as address:
        endpoint = f"http://{address}"
        with s3_at(endpoint):
            yield endpoint


async def run_store(delay_seconds: float) -> None:
    """Answer requests until terminated, after one line that ends in the address."""
    piece = np.random.default_rng(0).integers(0, 50_257, _PIECE_BYTES // 2, dtype=np.uint16)
    content = memoryview(piece.tobytes() * 2)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: _Connection(content, delay_seconds), "127.0.0.1", 0, backlog=512
    )
    print(f"listening on 127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    await listener.serve_forever()


class _Connection(asyncio.Protocol):
    """A connection, on which one request follows another: lists, HEADs and GETs of OBJECTS, each of
    which repeats the first half of content.
    """

    def __init__(self, content: memoryview, delay_seconds: float) -> None:
        self._content, self._delay_seconds = content, delay_seconds
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for request in requests:
            parts = self._answer(request.decode())
            if self._delay_seconds:
                loop = asyncio.get_running_loop()
                loop.call_later(self._delay_seconds, self._transport.writelines, parts)
            else:
                self._transport.writelines(parts)

    def _answer(self, request: str) -> list[bytes | memoryview]:
        method, path, _ = request.split(" ", 2)
        if "list-type=" in path:
            found = "".join(
                f"<Contents><Key>{name}</Key><Size>{size}</Size><ETag>1</ETag>"
                "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
                for name, size in OBJECTS.items()
                if "prefix=&" in path or "prefix=" not in path
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
            return [f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()]
        size_bytes = OBJECTS.get(path.partition("?")[0].removeprefix("/bucket/"))
        if size_bytes is None:
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
        head = 'ETag: "1"\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n'
        asked = re.search(r"\nrange: bytes=(\d+)-(\d+)", request, re.IGNORECASE)
        if asked is None or method == "HEAD":
            return [f"HTTP/1.1 200 OK\r\n{head}Content-Length: {size_bytes}\r\n\r\n".encode()]
        first, last = int(asked[1]), min(int(asked[2]), size_bytes - 1)
        head += f"Content-Range: bytes {first}-{last}/{size_bytes}\r\n"
        head += f"Content-Length: {last + 1 - first}\r\n\r\n"
        at = first % _PIECE_BYTES
        part = self._content[at : at + last + 1 - first]
        return [f"HTTP/1.1 206 Partial Content\r\n{head}".encode(), part]


if __name__ == "__main__":
    main()
