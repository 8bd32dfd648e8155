"""A function of many items, in several threads that do not hold up the end of the process.

The end of a process waits for the threads of an executor, and then no other thread may give it
work: a trainer that is stopped while it opens files would end late, and with a traceback.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], thread_count: int, name: str
) -> Iterator[Result]:
    """Yield function(item) for each item, in order.

    name: of the threads. They have ended when the iterator has.  Raises: what the function raises;
    the items after that one are left out.
    """
    futures: list[Future[Result]] = [Future() for _ in items]
    left = deque(zip(futures, items, strict=True))  # its popleft is atomic

    def work() -> None:
        while left:
            try:
                future, item = left.popleft()
            except IndexError:
                return
            try:
                future.set_result(function(item))
            except BaseException as error:  # noqa: BLE001 - raised by the iterator
                future.set_exception(error)

    threads: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # no more threads can start
            for _ in range(min(thread_count, len(items))):
                threads.append(threading.Thread(target=work, name=name, daemon=True))
                threads[-1].start()
        if not any(map(_has_started, threads)):
            yield from map(function, items)
            return
        for future in futures:
            yield future.result()
    finally:
        left.clear()
        for thread in filter(_has_started, threads):
            thread.join()


def _has_started(thread: threading.Thread) -> bool:
    return thread.ident is not None
