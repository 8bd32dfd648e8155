"""The interface of every contender of benchmarks.delivered: a module that prints one line.

A contender has SETTINGS, with a name for each setting worth trying, and `batches(path, **setting)`,
a context manager that yields an endless iterator over batches. Its last line is `main(batches,
SETTINGS)`, so that

    python -m benchmarks.peers.nanogpt --data train.bin --seconds 3

prints {"first_second": ..., "after": ...} in tokens per second.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import BATCH_SIZE, BATCH_TOKENS, CONTEXT_LENGTH

Setting = Mapping[str, Any]
Batches = Callable[..., AbstractContextManager[Iterator[Any]]]
ToPair = Callable[[Any], tuple[Any, Any]]

ONE_SETTING: Mapping[str, Setting] = {"": {}}
"""The SETTINGS of a contender without a choice."""


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
    """Return tokens per second in the first second and after it, and the last batch.

    The clock starts when the first batch is requested: imports are done, the server is ready.
    """
    begun = time.perf_counter()
    early, _ = _take_until(batches, begun + 1.0)
    # The batch that spans the end of the first second is not counted.
    resumed = time.perf_counter()
    late, last = _take_until(batches, resumed + seconds)
    elapsed = time.perf_counter() - resumed
    figures = {
        "first_second": (early - 1) * BATCH_TOKENS,
        "after": late * BATCH_TOKENS / elapsed,
    }
    return figures, last


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
