"""What every contender of benchmarks.delivered is: a module that runs alone and prints one line.

A contender has SETTINGS, a name for each setting worth trying, and `batches(path, **setting)`, a
context manager that yields an iterator over batches without end. Its last line is `main(batches,
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
"""The SETTINGS of whoever has nothing to choose."""


def main(
    batches: Batches,
    settings: Mapping[str, Setting],
    *,
    serve: Callable[[Path], None] | None = None,
    to_pair: ToPair | None = None,
) -> None:
    """Take the arguments, run the contender and print its figures; or be its server.

    serve: serves the corpus until it is terminated, after one line that ends in the address.
    to_pair: makes (x, y) of a batch that is delivered as something else; used once, for the check.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="file of uint16 tokens")
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure after the first one")
    parser.add_argument("--setting", choices=settings, default=next(iter(settings)))
    parser.add_argument("--serve", action="store_true", help="be the server")
    arguments = parser.parse_args()
    if arguments.serve:
        assert serve is not None
        serve(arguments.data)
        return
    # By default SIGTERM ends Python without `finally`, and servers would outlive their client.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with batches(arguments.data, **settings[arguments.setting]) as iterator:
        figures, last = measure(iterator, arguments.seconds)
        check(*(last if to_pair is None else to_pair(last)))
        print(json.dumps(figures), flush=True)


def measure(batches: Iterator[Any], seconds: float) -> tuple[dict[str, float], Any]:
    """Return tokens per second in the first second and in those after it; and the last batch.

    The clock starts when the first batch is asked for: imports are done, the server is ready.
    """
    begun = time.perf_counter()
    early, _ = _take_until(batches, begun + 1.0)
    # The batch that was under way when the first second ended belongs to neither.
    resumed = time.perf_counter()
    late, last = _take_until(batches, resumed + seconds)
    elapsed = time.perf_counter() - resumed
    figures = {
        "first_second": (early - 1) * BATCH_TOKENS,
        "after": late * BATCH_TOKENS / elapsed,
    }
    return figures, last


def _take_until(batches: Iterator[Any], end: float) -> tuple[int, Any]:
    """Take batches until one has come at or after end; return how many, and that one."""
    for count, batch in enumerate(batches, 1):
        if time.perf_counter() >= end:
            return count, batch
    raise SystemExit("the batches have come to an end")


def check(x: Any, y: Any) -> None:
    """Exit unless x and y are what was to be delivered: int64 [B, T] in one piece, y one ahead."""
    for name, array in (("x", np.asarray(x)), ("y", np.asarray(y))):
        found = (array.shape, array.dtype.name, array.flags.c_contiguous)
        if found != ((BATCH_SIZE, CONTEXT_LENGTH), "int64", True):
            raise SystemExit(f"{name} is not what was to be delivered: {found}")
    if not np.array_equal(np.asarray(y)[:, :-1], np.asarray(x)[:, 1:]):
        raise SystemExit("y is not x shifted by one token")
    if np.unique(np.asarray(x)).size < CONTEXT_LENGTH:
        raise SystemExit("x is not random tokens")


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """Run `python -m COMMAND`, and lend the address that its first line ends in."""
    server = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline().split()
        if not line:
            raise SystemExit(f"{command[0]} did not start; its last words are above")
        yield line[-1]
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
