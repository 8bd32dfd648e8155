"""Helpers for benchmarks of a running server: corpora on a disk, a cold page cache, streams.

This is not a benchmark itself.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from grpc.experimental import ChannelOptions

from tokenfeed.server.storage.local import syscalls
from tokenfeed.v1 import tokenfeed_pb2 as pb

ROOT = Path(__file__).parents[1]
METHOD = "/tokenfeed.v1.TokenFeed/GetBatch"
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    (ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.use_local_subchannel_pool", 1),
)
"""The options of our client, and a separate connection for each channel."""
_BLOCK_BYTES = 64 << 20


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Yield a temporary folder for corpora, and print its file system."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR") or "/var/tmp") as name:
        kind = file_system(Path(name))
        print(f"corpora on {kind}, read_ahead_kb {read_ahead_kb(Path(name))}")
        if kind in ("tmpfs", "ramfs"):
            sys.exit("this is memory, not a disk: set TMPDIR to a folder on one")
        yield Path(name)


def file_system(path: Path) -> str:
    """Return the type of the file system of a path."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if path.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def read_ahead_kb(path: Path) -> str:
    """Return the kernel's read-ahead in KiB for the disk of a path."""
    device = os.stat(path).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (block, block.parent):
        if (folder / "queue/read_ahead_kb").exists():
            return (folder / "queue/read_ahead_kb").read_text().strip()
    return "unknown"


def write_corpus(path: Path, size_bytes: int, seed: int = 0) -> Path:
    """Write random uint16 tokens, the same 64 MiB repeatedly, and flush them to the disk."""
    tokens = np.random.default_rng(seed).integers(0, 50_257, _BLOCK_BYTES // 2, dtype=np.uint16)
    with path.open("wb") as file:
        for first in range(0, size_bytes, _BLOCK_BYTES):
            file.write(tokens.view(np.uint8)[: size_bytes - first].data)
        os.fsync(file.fileno())
    return path


def drop(paths: Sequence[Path]) -> None:
    """Drop files from the page cache, and exit if that did not work."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    left = sum(resident_bytes(path) for path in paths)
    total = sum(path.stat().st_size for path in paths)
    if left > total // 100:
        sys.exit(f"{left} of {total} bytes stay in the page cache; does another process map them?")


def read_in(paths: Sequence[Path]) -> None:
    """Read files into the page cache."""
    block = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the page cache, according to mincore."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        pages = syscalls.residency(view.ctypes.data, view.size)
        del view
        return int(np.count_nonzero(pages)) * syscalls.PAGE_BYTES


class Server:
    """A server process. address: of its port.  pid: of the process."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        """Wait until it listens."""
        self._log = log
        assert process.stdout is not None
        line = process.stdout.readline()
        if "listening on" not in line:
            sys.exit(self.log)
        self.address = f"localhost:{line.rpartition(':')[2].strip()}"
        self.pid = process.pid

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text()

    def wait_for_log(self, words: str, seconds: float = 60.0) -> str:
        """Wait until the log contains these words; return the log."""
        deadline = time.monotonic() + seconds
        while words not in self.log:
            if time.monotonic() > deadline:
                sys.exit(f"no {words!r} within {seconds} s: {self.log}")
            time.sleep(0.02)
        return self.log


@contextmanager
def served(
    *arguments: str | Path, module: str = "server", altered: str = "", checkout: Path = ROOT
) -> Iterator[Server]:
    """Run a server for the duration of a with block.

    altered: statements to run in its process first, for variants without a command-line option.
    checkout: the folder whose server it is.
    """
    run = ["-m", module]
    if altered:
        main = "from tokenfeed.server.cli.serve import main"
        code = f"import sys\n{altered}\n{main}\nsys.exit(main())"
        run = ["-c", code]
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        process = subprocess.Popen(
            [sys.executable, *run, *map(str, arguments), "--port", "0"],
            cwd=checkout, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield Server(process, Path(log.name))
        finally:
            process.terminate()
            process.wait(timeout=30)


def frame_sizes(address: str, request: pb.GetBatchRequest) -> Iterator[int]:
    """Yield the size in bytes of every frame of a call. The frames are discarded."""
    with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        call = channel.unary_stream(METHOD)(request.SerializeToString())
        try:
            for message in call:
                yield len(message)
        finally:
            call.cancel()


def million_tokens_per_second(
    address: str, request: pb.GetBatchRequest, seconds: float, settle_seconds: float = 0.0
) -> float:
    """Return the rate of received uint16 tokens of a stream over this many seconds, after
    settle_seconds.
    """
    begin = time.monotonic() + settle_seconds
    received = 0
    for size in frame_sizes(address, request):
        now = time.monotonic()
        if now >= begin:
            received += size
        if now >= begin + seconds:
            return received / 2e6 / (now - begin)
    return 0.0


def stream(dataset: str = "", *, batch_size: int = 32, context_length: int = 2048, seed: int = 1,
           order: str = "random-1") -> pb.GetBatchRequest:  # fmt: skip
    """Return a request for an endless stream."""
    source = pb.Source(dataset=dataset, order=order, seed=seed)
    stage = pb.Stage(context_length=context_length)
    return pb.GetBatchRequest(
        batch_size=batch_size, stream=pb.Stream(sources=[source], stage=stage)
    )
