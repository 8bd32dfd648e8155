"""Does the work of units in processes of this machine or on a Ray cluster. Results keep their
order.

An ingest encodes text like this, and a packing makes rows. One process makes units and distributes
them. A few units per worker are in flight, so memory is bounded. Each worker has its own pipe: all
workers of a ProcessPoolExecutor share one, and if one of them is killed while it writes a result,
the others wait for the rest of it for ever.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import tokenfeed
from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, InvalidSource, TokenfeedError

_UNITS_AHEAD = 2
"""Per worker, in addition to the one that it works on."""
_BYTES_AHEAD_MAX = 128 << 20
_BYTES_OF_WORKER = 16 << 20
"""Two of the largest units, so that no worker waits while the one before it is written."""
_ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""One core per worker."""
_PR_SET_PDEATHSIG = 1


class SizedUnit(Protocol):
    """A unit, which is sent to the process that works on it."""

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""


Unit = TypeVar("Unit", bound=SizedUnit)
Recipe = TypeVar("Recipe")
Result = TypeVar("Result")
Handle = TypeVar("Handle")
Work = Callable[[Unit, Recipe], Result]
"""A unit, and the recipe of all of them -> its result. A function of a module, so that any process
finds it by its name."""
Left = Callable[[Result], Iterable[Unit]]
"""A result -> units that the work has left of its own unit, whose results come next."""
Executor = Callable[[Iterable[Unit], Recipe, Left[Result, Unit] | None], Iterator[Result]]
"""Units, their recipe, and what results leave, None for nothing -> the results, in order."""


@contextmanager
def make_executor(
    name: str, workers: int | None, work: Work[Unit, Recipe, Result]
) -> Iterator[Executor[Unit, Recipe, Result]]:
    """Lend an executor of some work.

    workers: None for all cores, or all of the cluster. On this machine they are forks, so they have
    the modules and files that this process has loaded: call it before a thread is started.
    """
    if name == "ray":
        yield partial(ray, workers=workers, work=work)
        return
    started: list[_Worker[Unit, Recipe, Result]] = []
    try:
        _start(workers or len(os.sched_getaffinity(0)), started, work)
        yield partial(local, workers=started)
    finally:
        _kill(started)


def local(
    units: Iterable[Unit],
    recipe: Recipe,
    left: Left[Result, Unit] | None,
    *,
    workers: Sequence[_Worker[Unit, Recipe, Result]],
) -> Iterator[Result]:
    """Work on units in processes of this machine.  Raises: InvalidSource if one of them dies."""
    idle: SimpleQueue[_Worker[Unit, Recipe, Result]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def do(unit: Unit) -> Result:
        worker = idle.get()
        try:
            return worker.do(unit, recipe)
        finally:
            # Also a dead worker: the next thread must not wait for one for ever.
            idle.put(worker)

    threads = ThreadPoolExecutor(len(workers), "tokenfeed-unit")
    try:

        def begin(unit: Unit) -> Future[Result]:
            return threads.submit(do, unit)

        yield from _in_order(units, begin, Future.result, len(workers), left)
    finally:
        # Otherwise a thread would wait for a busy worker.
        _kill(workers)
        threads.shutdown(cancel_futures=True)


def _start(
    count: int,
    started: list[_Worker[Unit, Recipe, Result]],
    work: Work[Unit, Recipe, Result],
) -> None:
    """Start workers. Each is added to `started` at once, so a failing fork leaves none unknown."""
    # From their first instruction on workers block both signals, which this process handles.
    with _signals_blocked():
        started.extend(_Worker(work) for _ in range(count))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM from this thread, and its forks, until the with block ends."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Worker(Generic[Unit, Recipe, Result]):
    """A process that works, and the pipe to it: one unit in, its result out."""

    def __init__(self, work: Work[Unit, Recipe, Result]) -> None:
        """Start it, before the recipe is known."""
        context = get_context("fork")
        self._has_recipe = False
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, os.getpid(), work), daemon=True)
        self.process.start()
        # Otherwise the pipe would stay open when it dies.
        theirs.close()

    def do(self, unit: Unit, recipe: Recipe) -> Result:
        """Work on a unit by the recipe of the first call.  Raises: InvalidSource if it dies."""
        try:
            if not self._has_recipe:
                _send(self._connection, recipe)
                self._has_recipe = True
            _send(self._connection, unit)
            answer: Result | TokenfeedError = _receive(self._connection)
        except (EOFError, OSError) as error:
            problem = "a worker process was killed, maybe because memory ran out"
            cure = "free memory, or pass fewer --workers; then run the same command again"
            raise InvalidSource("--workers", f"{problem}; {cure}") from error
        if isinstance(answer, TokenfeedError):
            raise answer
        return answer


def _kill(workers: Sequence[_Worker[Unit, Recipe, Result]]) -> None:
    """Kill all processes, and then wait: it takes milliseconds until the memory of one is free."""
    # A worker that was left alive would hold up the end of this process.
    with _signals_blocked():
        for worker in workers:
            worker.process.kill()
    for worker in workers:
        worker.process.join()


def _work(connection: Connection, parent: int, work: Work[Unit, Recipe, Result]) -> None:
    """Do the work of units until the process is killed."""
    end_with_parent(parent)
    os.environ.update(_ONE_CORE)
    recipe = _receive(connection)
    while True:
        unit = _receive(connection)
        try:
            _send(connection, work(unit, recipe))
        except TokenfeedError as error:
            _send(connection, error)


def _send(connection: Connection, value: object) -> None:
    """Send a value; its arrays go from their memory into the pipe.  Raises: OSError."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    contents = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    sizes = [content.nbytes for content in contents]
    lead = struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)
    for content in (memoryview(lead), *contents):
        left = content
        while left:
            left = left[os.writev(connection.fileno(), [left]) :]


def _receive(connection: Connection) -> Any:
    """Return what `_send` has sent; its arrays lie where the pipe was read to.

    Raises: EOFError, OSError.
    """
    (count,) = struct.unpack("<Q", _read(connection, 8))
    sizes = struct.unpack(f"<{count}Q", _read(connection, 8 * count))
    head, *buffers = (_read(connection, size) for size in sizes)
    return pickle.loads(head, buffers=buffers)


def _read(connection: Connection, size_bytes: int) -> bytearray:
    content = bytearray(size_bytes)
    left = memoryview(content)
    while left:
        count = os.readv(connection.fileno(), [left])
        if not count:
            raise EOFError
        left = left[count:]
    return content


def ray(
    units: Iterable[Unit],
    recipe: Recipe,
    left: Left[Result, Unit] | None,
    *,
    workers: int | None,
    work: Work[Unit, Recipe, Result],
) -> Iterator[Result]:
    """Work on units on the Ray cluster that this machine belongs to; if a node dies, other nodes
    take over its units.

    workers: concurrent units; None for as many as the cluster has processors.
    Raises: InvalidRequest if there is no cluster.
    """
    try:
        import ray as cluster
    except ImportError as error:
        raise InvalidRequest("--executor", missing(error, "ray")) from None
    package = os.path.dirname(os.path.abspath(tokenfeed.__file__))
    try:
        # Our code is sent with the work, so other nodes need not have it.
        cluster.init(
            address="auto",
            runtime_env={"py_modules": [package], "env_vars": _ONE_CORE},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except ConnectionError as error:
        cure = "run `ray start --head` on one machine, and what it prints on the others"
        raise InvalidRequest("--executor", f"found no Ray cluster; {cure}") from error
    try:
        task = cluster.remote(max_retries=-1)(work)
        kept = cluster.put(recipe)
        at_once = workers or int(cluster.cluster_resources().get("CPU", 1))

        def begin(unit: Unit) -> Any:
            return task.remote(unit, kept)

        def result(handle: Any) -> Result:
            found: Result = cluster.get(handle)
            return found

        yield from _in_order(units, begin, result, at_once, left)
    except cluster.exceptions.RayError as error:
        cure = "run the same command again"
        raise InvalidSource("--executor", f"{str(error).splitlines()[0]}; {cure}") from error
    finally:
        cluster.shutdown()


def _in_order(
    units: Iterable[Unit],
    begin: Callable[[Unit], Handle],
    result: Callable[[Handle], Result],
    workers: int,
    left: Left[Result, Unit] | None,
) -> Iterator[Result]:
    """Yield results in order. A few units for each worker are begun ahead of the awaited one, fewer
    if they exceed _BYTES_AHEAD_MAX and _BYTES_OF_WORKER together; and as many of those that a
    result leaves.
    """
    ahead = (1 + _UNITS_AHEAD) * workers
    bytes_max = max(_BYTES_AHEAD_MAX, _BYTES_OF_WORKER * workers)

    def results(handle: Handle) -> Iterator[Result]:
        found = result(handle)
        yield found
        if left is not None:
            yield from _in_order(left(found), begin, result, workers, left)

    begun: deque[tuple[int, Handle]] = deque()
    waiting_bytes = 0
    for unit in units:
        begun.append((unit.size_bytes, begin(unit)))
        waiting_bytes += unit.size_bytes
        while begun and (len(begun) > ahead or waiting_bytes > bytes_max):
            size_bytes, handle = begun.popleft()
            waiting_bytes -= size_bytes
            yield from results(handle)
    for _, handle in begun:
        yield from results(handle)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
