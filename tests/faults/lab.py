"""Helpers of all faults: real servers, a corpus, and a sentinel that checks every row."""

from __future__ import annotations

import ctypes
import hashlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from client import RemoteBatches, Timeouts
from tests.support import forked
from tests.support.offline import offline_rows
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
Batch = tuple[torch.Tensor, torch.Tensor]
B, T = 4, 256
SEED = 7


@dataclass
class Report:
    """A line of the table.  gaps: the waits for batches in seconds, without the first.  hits: the
    number of faults that hit the server that was delivering at that moment.  memory_bytes: growth
    of the server, if the same process runs throughout.
    """

    fault: str
    injected: int = 0
    hits: int = 0
    batches: int = 0
    lost: int = 0
    repeated: int = 0
    corrupted: int = 0
    gaps: list[float] = field(default_factory=list)
    memory_bytes: int | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def require(self, met: bool, what: str) -> None:
        """Record a requirement that is not met."""
        if not met:
            self.failures.append(what)

    def require_exact(self, *, some_miss: bool = False) -> None:
        """Require that all faults hit, and that every row came once, in order, and was right.

        some_miss: faults during a handshake are allowed, although no rows were in transit.
        """
        self.require(self.injected > 0, "nothing was injected")
        missed = self.injected - self.hits
        self.require(missed == 0 or some_miss, f"{missed} of {self.injected} faults missed")
        self.require(self.lost == 0, f"{self.lost} rows were lost")
        self.require(self.repeated == 0, f"{self.repeated} rows came twice")
        self.require(self.corrupted == 0, f"{self.corrupted} rows were wrong")

    @property
    def longest_gap(self) -> float:
        """Seconds."""
        return max(self.gaps, default=0.0)

    def gap_percentile(self, percent: float) -> float:
        """Return a percentile of the gaps in seconds; 0.0 without gaps."""
        return float(np.percentile(self.gaps, percent)) if self.gaps else 0.0


def write_corpus(path: Path, tokens: int, seed: int = 1) -> Path:
    """Write random tokens, so that every window is unique."""
    np.random.default_rng(seed).integers(1, 1 << 16, tokens, dtype="<u2").tofile(path)
    return path


class Process:
    """The resources of a process, from /proc."""

    def __init__(self, pid: int) -> None:
        """Read nothing yet."""
        self._folder = Path(f"/proc/{pid}")

    def memory_bytes(self) -> int:
        """Anonymous and shared memory, without mapped files."""
        lines = (self._folder / "status").read_text().splitlines()
        kinds = ("RssAnon:", "RssShmem:")
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))

    def descriptor_count(self) -> int:
        """Open files and sockets."""
        return len(list((self._folder / "fd").iterdir()))

    def thread_count(self) -> int:
        """Threads."""
        return len(list((self._folder / "task").iterdir()))

    def all(self) -> tuple[int, int, int]:
        """Memory, descriptors, threads."""
        return self.memory_bytes(), self.descriptor_count(), self.thread_count()


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2 (mallinfo(3))."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
        )
    ]


def heap_bytes() -> int:
    """Bytes of this process that malloc has handed out and not got back: no freed blocks."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


class Replica:
    """A server process that can be ended and restarted on the same port."""

    def __init__(
        self,
        log: Path,
        *arguments: str | Path,
        host: str = "127.0.0.1",
        wrapper: Sequence[str] = (),
        timers: Mapping[str, float] | None = None,
    ) -> None:
        """Start it, and wait until it listens.  wrapper, timers: see forked.start_server."""
        self._log = log
        self.wrapper = wrapper
        self._timers = timers
        self._arguments = [str(argument) for argument in arguments]
        self.host = host
        self.port = free_port()
        self.process = self.start()

    @property
    def address(self) -> str:
        """Its address, "HOST:PORT"."""
        return f"{self.host}:{self.port}"

    @property
    def stderr(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def start(self) -> forked.Process:
        """Start or restart it, and wait until it listens."""
        words = [*self._arguments, "--host", self.host, "--port", str(self.port)]
        with self._log.open("a") as stderr:
            self.process = forked.start_server(words, stderr.fileno(), self.wrapper, self._timers)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listening on" in line, self.stderr
        return self.process

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(timeout=10)

    def close(self) -> None:
        """End it, even if it is stopped by SIGSTOP."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    @property
    def usage(self) -> Process:
        """Its resources."""
        return Process(self.process.pid)


@contextmanager
def replicas(
    folder: Path,
    count: int,
    *arguments: str | Path,
    host: str = "127.0.0.1",
    wrapper: Sequence[str] = (),
    timers: Mapping[str, float] | None = None,
) -> Iterator[list[Replica]]:
    """Yield servers of one corpus, and end them afterwards."""
    with ExitStack() as stack:
        started = []
        for index in range(count):
            log = folder / f"server-{index}.log"
            replica = Replica(log, *arguments, host=host, wrapper=wrapper, timers=timers)
            stack.callback(replica.close)
            started.append(replica)
        yield started


class Sentinel:
    """Takes batches from a feed and checks every row."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        *,
        name: str = "corpus",
        batch_size: int = B,
        context_length: int = T,
    ) -> None:
        """Write a corpus of this many steps, and compute the expected rows."""
        self.steps, self.name = steps, name
        self._batch_size, self._context_length = batch_size, context_length
        samples = steps * batch_size
        self.corpus = write_corpus(folder / f"{name}.bin", (samples + 1) * context_length)
        rows = offline_rows([self.corpus], "shuffled-1", SEED, context_length, range(samples))
        # Rows are identified by their hashes, because a row may have megabytes.
        self._samples = {hash(row.tobytes()): sample for sample, row in enumerate(rows)}
        self._digest = hashlib.sha256()
        for row in rows:
            self._digest.update(row.tobytes())
        self._rows = samples
        assert len(self._samples) == self._rows, "two windows are equal"

    def feed(self, targets: str | Sequence[str], **options: object) -> RemoteBatches:
        """Open a feed of the expected rows, with a small prefetch so that gaps are measurable."""
        batch_bytes = self._batch_size * (self._context_length + 1) * 2
        settings: dict[str, object] = {
            "seed": SEED, "order": "shuffled", "rank": 0, "world_size": 1, "dataset": self.name,
            "num_batches": self.steps, "prefetch_bytes": 8 * min(batch_bytes, 8 << 20),
            "timeouts": Timeouts(reconnect_seconds=120.0),
        }  # fmt: skip
        return RemoteBatches(
            targets,
            self._batch_size,
            self._context_length,
            **(settings | options),  # type: ignore[arg-type]
        )

    def watch(self, feed: Iterator[Batch], report: Report, pace_seconds: float = 0.0) -> None:
        """Take all batches, one per pace_seconds, and record gaps and wrong rows in the report."""
        digest = hashlib.sha256()
        expected, missing = 0, set(range(self._rows))
        while True:
            began = time.monotonic()
            batch = next(feed, None)
            if expected:  # the first wait is not a gap: it includes the connection
                report.gaps.append(time.monotonic() - began)
            if batch is None:
                break
            x, y = (part.numpy() for part in batch)
            rows = np.concatenate([x, y[:, -1:]], axis=1)
            for row in rows:
                digest.update(row.tobytes())
                sample = self._samples.get(hash(row.tobytes()))
                if sample is None:
                    report.corrupted += 1
                elif sample not in missing:
                    report.repeated += 1
                else:
                    report.corrupted += sample != expected
                    missing.discard(sample)
                expected += 1
            report.batches += 1
            if (left := pace_seconds - (time.monotonic() - began)) > 0:
                time.sleep(left)
        report.lost += len(missing)
        report.require(digest.digest() == self._digest.digest(), "SHA-256 differs")
