"""Processes whose main thread is interrupted repeatedly, as by Ctrl-C, while it uses feeds.

Started by interrupts.py: python -m tests.faults.interrupted RUNS, a list in JSON of lists of the
way, the address, the seed, the number of interrupts and the prefetched bytes. Each run is a fork of
this process, which has imported torch, a few at a time. Prints their results as JSON, a line each,
in the order of the runs.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any, TextIO

import torch

from client import RemoteBatches
from tests.support.waiting import eventually

from .lab import B, T

AT_ONCE = 4
HANG_SECONDS = 60
DELAY_SECONDS = 0.01
"""The latest time of an interrupt."""
WORK_SECONDS = 1.0
"""Work that continues for this long was not interrupted: Python has swallowed the interrupt."""


class Work:
    """Feeds of one server, or of local files, used in several ways until the time is over."""

    def __init__(self, address: str, prefetch_bytes: int) -> None:
        """Create a feed, without I/O."""
        self._address = address
        self._prefetch_bytes = prefetch_bytes
        self._end = 0.0
        self._x = torch.empty(B, T, dtype=torch.int64)
        self._y = torch.empty_like(self._x)
        self.feed = self.make()
        self.batches = self.wrong = 0
        self.first_batches: list[torch.Tensor] = []

    def make(self, start_sample: int = 0) -> RemoteBatches:
        """Create a feed of the server."""
        return RemoteBatches(
            self._address,
            B,
            T,
            order="shuffled",
            rank=0,
            world_size=1,
            start_sample=start_sample,
            prefetch_bytes=self._prefetch_bytes,
        )

    def begin(self) -> None:
        """Start the time."""
        self._end = time.monotonic() + WORK_SECONDS

    def has_time(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self._end

    def loop(self) -> None:
        """One feed, iterated over."""
        self._take(self.feed, 1 << 62)

    def copy_into(self) -> None:
        """Copy batches into the caller's tensors."""
        while self.has_time() and self.feed.copy_into(self._x, self._y):
            self.batches += 1

    def epoch(self) -> None:
        """Read a few batches of an epoch, repeatedly."""
        while self.has_time():
            self._take(self.feed.epoch(0), 4)

    def state_dict(self) -> None:
        """Take states of new feeds, which requires a request, and of a feed in use."""
        while self.has_time():
            self.make().state_dict()
            self.feed.load_state_dict(self.feed.state_dict())
            self._take(self.feed, 1)

    def with_block(self) -> None:
        """Feeds that a `with` block closes."""
        while self.has_time():
            with self.make() as feed:
                self._take(feed, 4, from_start=True)

    def let_go(self) -> None:
        """Feeds that are never closed."""
        while self.has_time():
            self._take(self.make(), 4, from_start=True)

    def _take(
        self, batches: Iterable[tuple[torch.Tensor, ...]], count: int, *, from_start: bool = False
    ) -> None:
        for index, (x, _) in enumerate(batches):
            self.batches += 1
            if from_start:
                self.wrong += not x.equal(self.first_batches[index])
            if index + 1 == count or not self.has_time():
                break

    def goes_on(self) -> bool:
        """Whether the feed continues at its position with the right rows."""
        with self.make(self.feed.position.samples) as fresh:
            return all(next(self.feed)[0].equal(next(fresh)[0]) for _ in range(3))


def main() -> None:
    """Do all runs, and print their results; {"hung": what happened} of one that failed."""
    runs = json.loads(sys.argv[1])
    gc.freeze()
    results: dict[int, dict[str, Any]] = {}
    running: dict[int, tuple[int, TextIO]] = {}
    while len(results) < len(runs):
        next_index = len(results) + len(running)
        if next_index < len(runs) and len(running) < AT_ONCE:
            output = tempfile.TemporaryFile("w+")
            if (process := os.fork()) == 0:
                os.dup2(output.fileno(), 1)
                # Its end is that of the interpreter, which is part of the work.
                interrupt(*runs[next_index])
                return
            running[process] = next_index, output
            continue
        process, status = os.wait()
        index, output = running.pop(process)
        with output:
            output.seek(0)
            said = output.read()
        code = os.waitstatus_to_exitcode(status)
        failed = {"hung": f"{runs[index]}, exit code {code}, see stderr: {said}"}
        results[index] = failed if code else json.loads(said)
    for index in sorted(results):
        print(json.dumps(results[index]))


def interrupt(way: str, address: str, seed: int, count: int, prefetch_bytes: int) -> None:
    """Interrupt one kind of work, and print the result."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    torch.set_num_threads(1)
    swallowed: list[str] = []
    sys.unraisablehook = lambda event: swallowed.append(_place(event))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    chance, work = random.Random(seed), Work(address, prefetch_bytes)
    answers = way not in ("stopped", "unresolved")
    do = getattr(work, way) if answers else work.let_go
    if answers:
        with work.make() as feed:
            work.first_batches = [next(feed)[0] for _ in range(4)]
    raised, slowest_seconds = 0, 0.0
    for _ in range(count):
        delay_seconds = 1e-4 + chance.random() * (DELAY_SECONDS - 1e-4)
        began = time.monotonic()
        work.begin()
        try:
            # The second interrupt comes if Python has swallowed the first.
            signal.setitimer(signal.ITIMER_REAL, delay_seconds, WORK_SECONDS)
            do()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            seconds = time.monotonic() - began - delay_seconds
            if seconds < WORK_SECONDS:
                raised += 1
                slowest_seconds = max(slowest_seconds, seconds)
    goes_on = not answers or work.goes_on()
    began = time.monotonic()
    work.feed.close()
    closing_seconds = time.monotonic() - began
    ended = eventually(lambda: not own_threads())
    print(
        json.dumps(
            {
                "raised": raised,
                "batches": work.batches,
                "wrong": work.wrong,
                "goes_on": goes_on,
                "threads_left": [] if ended else own_threads(),
                "slowest_seconds": slowest_seconds,
                "closing_seconds": closing_seconds,
                "swallowed": swallowed,
            }
        )
    )


def own_threads() -> list[str]:
    """Threads of feeds, except those that wait for the system's resolver and cannot be ended."""
    names = [thread.name for thread in threading.enumerate()]
    return [n for n in names if n.startswith("tokenfeed-") and n != "tokenfeed-resolver"]


def _place(event: object) -> str:
    """The place where Python could not raise an exception."""
    frames = traceback.extract_tb(getattr(event, "exc_traceback", None))
    where = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)
    return where or repr(getattr(event, "object", None))


if __name__ == "__main__":
    main()
