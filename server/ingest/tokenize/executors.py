"""Who encodes: processes of this machine, or a Ray cluster. Results come in the order of the units.

Units are read by one and handed out, so no other machine needs the files; a few are on their way
for each worker, so memory is bounded whatever the input. Each worker has a pipe of its own: all of
a ProcessPoolExecutor share one, and whoever is killed in the middle of a result leaves the others
waiting for the rest of it for ever.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

import tokenfeed
from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, InvalidSource, TokenfeedError

from ..units import Unit
from .encoding import EncodedUnit, Recipe, encode_unit

_UNITS_AHEAD = 2
"""For each worker, beside the one that it works on."""
_BYTES_AHEAD_MAX = 128 << 20
_ONE_CORE = {"TOKENIZERS_PARALLELISM": "false"}
"""One worker is one core."""
_PR_SET_PDEATHSIG = 1

Executor = Callable[[Iterable[Unit], Recipe], Iterator[tuple[Unit, EncodedUnit]]]
Handle = TypeVar("Handle")


@contextmanager
def make_executor(name: str, workers: int | None) -> Iterator[Executor]:
    """Lend who encodes.  workers: None for what there is."""
    if name == "ray":
        yield partial(ray, workers=workers)
        return
    started = _start(workers or len(os.sched_getaffinity(0)))
    try:
        yield partial(local, workers=started)
    finally:
        for worker in started:
            worker.kill()


def local(
    units: Iterable[Unit], recipe: Recipe, *, workers: Sequence[_Worker]
) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Encode units in processes of this machine.  Raises: InvalidSource if one of them dies."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(unit: Unit) -> EncodedUnit:
        worker = idle.get()
        try:
            return worker.encode(unit, recipe)
        finally:
            # One that has died too: whoever asks it next must not wait for ever.
            idle.put(worker)

    threads = ThreadPoolExecutor(len(workers), "tokenfeed-encode")
    try:
        ahead = (1 + _UNITS_AHEAD) * len(workers)
        yield from _in_order(units, lambda unit: threads.submit(encode, unit), Future.result, ahead)
    finally:
        # Or a thread would wait for one that is busy.
        for worker in workers:
            worker.kill()
        threads.shutdown(cancel_futures=True)


def _start(count: int) -> list[_Worker]:
    # They leave Ctrl-C to this process, from their first instruction on. What multiprocessing
    # starts before the first of them would undo that.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [_Worker() for _ in range(count)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Worker:
    """A process that encodes, and the pipe to it: one unit goes in, its part comes out."""

    def __init__(self) -> None:
        """Start it. It is told later, by whoever asks it first, what to do: it needs a second until
        it listens.
        """
        context = get_context("spawn")
        self._told = False
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        self._process.start()
        # Else the pipe would stay open when it dies.
        theirs.close()

    def encode(self, unit: Unit, recipe: Recipe) -> EncodedUnit:
        """Return what it makes of a unit, by the recipe of the first one.  Raises: InvalidSource if
        it dies.
        """
        try:
            if not self._told:
                self._connection.send(recipe)
                self._told = True
            self._connection.send(unit)
            answer: EncodedUnit | TokenfeedError = self._connection.recv()
        except (EOFError, OSError) as error:
            problem = "a process that encodes was killed; for want of memory? Try fewer --workers"
            raise InvalidSource("--workers", f"{problem}, and the same command again") from error
        if isinstance(answer, TokenfeedError):
            raise answer
        return answer

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()


def _work(connection: Connection, parent: int) -> None:
    """Encode what comes, until nothing more does."""
    end_with_parent(parent)
    os.environ.update(_ONE_CORE)
    recipe = connection.recv()
    while True:
        unit = connection.recv()
        try:
            connection.send(encode_unit(unit, recipe))
        except TokenfeedError as error:
            connection.send(error)


def ray(
    units: Iterable[Unit], recipe: Recipe, *, workers: int | None
) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Encode units on the Ray cluster that this machine belongs to; a unit whose node dies is
    encoded by another.

    workers: units at once; None for as many as the cluster has processors.
    Raises: InvalidRequest if there is no cluster.
    """
    try:
        import ray as cluster
    except ImportError as error:
        raise InvalidRequest("--executor", missing(error, "ray")) from None
    package = os.path.dirname(os.path.abspath(tokenfeed.__file__))
    try:
        # Other nodes need none of our code: it travels with the work.
        cluster.init(
            address="auto",
            runtime_env={"py_modules": [package], "env_vars": _ONE_CORE},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except ConnectionError as error:
        cure = "begin one on each machine: ray start"
        raise InvalidRequest("--executor", f"there is no Ray cluster here; {cure}") from error
    try:
        encode = cluster.remote(max_retries=-1)(encode_unit)
        kept = cluster.put(recipe)
        at_once = workers or int(cluster.cluster_resources().get("CPU", 1))
        ahead = (1 + _UNITS_AHEAD) * at_once

        def begin(unit: Unit) -> Any:
            return encode.remote(unit, kept)

        yield from _in_order(units, begin, cluster.get, ahead)
    except cluster.exceptions.RayError as error:
        raise InvalidSource("--executor", f"{str(error).splitlines()[0]}; run it again") from error
    finally:
        cluster.shutdown()


def _in_order(
    units: Iterable[Unit],
    begin: Callable[[Unit], Handle],
    result: Callable[[Handle], EncodedUnit],
    ahead: int,
) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Begin units, at most so many ahead of the one that is waited for, and not too many bytes."""
    begun: deque[tuple[Unit, int, Handle]] = deque()
    waiting_bytes = 0
    for unit in units:
        size_bytes = unit.content.size_bytes if unit.content is not None else 0
        # The text is wherever it is encoded; here it is needed no more.
        begun.append((replace(unit, content=None), size_bytes, begin(unit)))
        waiting_bytes += size_bytes
        while begun and (len(begun) > ahead or waiting_bytes > _BYTES_AHEAD_MAX):
            first, size_bytes, handle = begun.popleft()
            waiting_bytes -= size_bytes
            yield first, result(handle)
    for first, _, handle in begun:
        yield first, result(handle)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
