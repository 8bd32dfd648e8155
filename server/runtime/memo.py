"""Values that take long to make, and much memory: each is made once, and the last used are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Values by their key. May be used from several threads at once: who needs a value that another
    thread makes waits for it; who needs another one does not.
    """

    def __init__(self, size_of: Callable[[Value], int], size_max: int) -> None:
        """size_max: of all values that are kept; the one used last is kept in any case."""
        self._size_of = size_of
        self._size_max = size_max
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Future[Value]] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if there is none.  Raises: what make raises."""
        with self._lock:
            found = self._values.get(key)
            value: Future[Value] = Future() if found is None else found
            self._values[key] = value
            self._values.move_to_end(key)
        if found is None:
            self._make(key, value, make)
        return value.result()

    def _make(self, key: Key, value: Future[Value], make: Callable[[], Value]) -> None:
        try:
            value.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised by `get`
            with self._lock:
                del self._values[key]
            value.set_exception(error)
            return
        with self._lock:
            self._trim()

    def _trim(self) -> None:
        """Drop values, those first that were not used for longest; none that is being made."""
        sizes = {
            key: self._size_of(value.result())
            for key, value in self._values.items()
            if value.done()
        }
        left = sum(sizes.values())
        for key in list(sizes)[:-1]:
            if left <= self._size_max:
                return
            left -= sizes[key]
            del self._values[key]
