"""The interface of every contender of benchmarks.delivered: a module that prints one line.

A contender has SETTINGS, with a name for each setting worth trying, and `batches(path, **setting)`,
a context manager that yields an endless iterator over batches. Its last line is `main(batches,
SETTINGS)`, so that

    python -m benchmarks.peers.nanogpt --data train.bin --seconds 3

prints {"first_second": ..., "after": ..., "server_ms_per_mib": ..., "client_ms_per_mib": ...}. The
first two are tokens per second. The others are the processor time after the first second, per MiB
of tokens as they travel (BATCH_BYTES a batch): of the processes that `serving` has started, and of
this process with its other children, such as the workers of a loader.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processor_time import started_seconds, tree_seconds
from benchmarks.rows import BATCH_BYTES, BATCH_SIZE, BATCH_TOKENS, CONTEXT_LENGTH

Setting = Mapping[str, Any]
Batches = Callable[..., AbstractContextManager[Iterator[Any]]]
ToPair = Callable[[Any], tuple[Any, Any]]

ONE_SETTING: Mapping[str, Setting] = {"": {}}
"""The SETTINGS of a contender without a choice."""

_RUN_SECONDS_MAX = 60.0

_server_pids: list[int] = []
"""The processes that `serving` has started."""


def main(
    batches: Batches,
    settings: Mapping[str, Setting],
    *,
    serve: Callable[[Path], None] | None = None,
    to_pair: ToPair | None = None,
) -> None:
    """Parse the arguments, run the contender and print its figures; or run its server.

    serve: serves the corpus until it is terminated, after one line that ends in the address.
    to_pair: converts a batch of another form to (x, y); used once, for the check.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="file of uint16 tokens")
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure after the first")
    parser.add_argument("--setting", choices=settings, default=next(iter(settings)))
    parser.add_argument("--serve", action="store_true", help="run the server")
    arguments = parser.parse_args()
    if arguments.serve:
        assert serve is not None
        serve(arguments.data)
        return
    # By default SIGTERM ends Python without running `finally`, so servers would outlive clients.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with batches(arguments.data, **settings[arguments.setting]) as iterator:
        figures, last = measure(iterator, arguments.seconds)
        check(*(last if to_pair is None else to_pair(last)))
        print(json.dumps(figures), flush=True)


def measure(batches: Iterator[Any], seconds: float) -> tuple[dict[str, float], Any]:
    """Return the figures, and the last batch.

    The clock starts when the first batch is requested: imports are done, the server is ready.
    """
    begun = time.perf_counter()
    early, _ = _take_until(batches, begun + 1.0)
    # The batch that spans the end of the first second is not counted.
    server, children = _processor_seconds()
    own, resumed = time.process_time(), time.perf_counter()
    late, last = _take_until(batches, resumed + seconds)
    elapsed, own = time.perf_counter() - resumed, time.process_time() - own
    server_later, children_later = _processor_seconds()
    ms_per_mib = 1e3 / (late * BATCH_BYTES / 2**20)
    figures = {
        "first_second": (early - 1) * BATCH_TOKENS,
        "after": late * BATCH_TOKENS / elapsed,
        "server_ms_per_mib": (server_later - server) * ms_per_mib,
        "client_ms_per_mib": (own + children_later - children) * ms_per_mib,
    }
    return figures, last


def _processor_seconds() -> tuple[float, float]:
    """Return the processor time used by the servers, and by the other children of this process."""
    return sum(map(tree_seconds, _server_pids)), started_seconds(os.getpid(), _server_pids)


def _take_until(batches: Iterator[Any], end: float) -> tuple[int, Any]:
    """Take batches until one arrives at or after end; return their number and the last one."""
    for count, batch in enumerate(batches, 1):
        if time.perf_counter() >= end:
            return count, batch
    raise SystemExit("the iterator has ended")


def check(x: Any, y: Any) -> None:
    """Exit unless x and y are contiguous int64 [B, T], and y is x shifted by one token."""
    for name, array in (("x", np.asarray(x)), ("y", np.asarray(y))):
        found = (array.shape, array.dtype.name, array.flags.c_contiguous)
        if found != ((BATCH_SIZE, CONTEXT_LENGTH), "int64", True):
            raise SystemExit(f"{name} has shape, dtype and contiguity {found}")
    if not np.array_equal(np.asarray(y)[:, :-1], np.asarray(x)[:, 1:]):
        raise SystemExit("y is not x shifted by one token")
    if np.unique(np.asarray(x)).size < CONTEXT_LENGTH:
        raise SystemExit("x is not random tokens")


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """Run `python -m COMMAND`, and yield the address at the end of its first line."""
    server = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    _server_pids.append(server.pid)
    try:
        assert server.stdout is not None
        line = server.stdout.readline().split()
        if not line:
            raise SystemExit(f"{command[0]} did not start; see its output above")
        yield line[-1]
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        _server_pids.remove(server.pid)


def fresh_run(
    benchmark: str, folder: str, setting: str, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the figures that a benchmark prints of one of its settings, in a process of its own.

    benchmark: its module, which has the option --run.  folder: of the corpus.  arguments: those of
    this process.
    """
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--run", folder, setting]
    command += ["--seconds", str(arguments.seconds), "--order", arguments.order]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=_RUN_SECONDS_MAX
    ).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found
