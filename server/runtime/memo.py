"""Values that take long to make, and much memory: each is made once, and the last used are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Values by their key. May be used from several threads at once: who needs a value that another
    thread makes waits for it; who needs another one does not. A Ctrl-C at any place leaves nothing
    locked, and nothing that is never made.
    """

    def __init__(self, size_of: Callable[[Value], int], size_max: int) -> None:
        """size_max: of all values that are kept; the one used last is kept in any case."""
        self._size_of = size_of
        self._size_max = size_max
        self._lock = threading.Lock()
        self._slots: OrderedDict[Key, _Slot[Value]] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if there is none.  Raises: what make raises."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
        with slot.lock:
            if slot.error is not None:  # of the thread that this one has waited for
                raise slot.error
            if not slot.made:
                self._make(key, slot, make)
        return slot.made[0]

    def _make(self, key: Key, slot: _Slot[Value], make: Callable[[], Value]) -> None:
        try:
            slot.made.append(make())
        except Exception as error:
            with self._lock:
                if self._slots.get(key) is slot:
                    del self._slots[key]
            slot.error = error
            raise
        with self._lock:
            self._trim()

    def _trim(self) -> None:
        """Drop values, those first that were not used for longest; none that is being made."""
        sizes = {key: self._size_of(slot.made[0]) for key, slot in self._slots.items() if slot.made}
        left = sum(sizes.values())
        for key in list(sizes)[:-1]:
            if left <= self._size_max:
                return
            left -= sizes[key]
            del self._slots[key]


class _Slot(Generic[Value]):
    """Holds a value once it is made, or the error; locked while a thread makes it.

    Not a Future: its Condition is code in Python, where a Ctrl-C can leave it locked.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[Value] = []
        self.error: Exception | None = None
