"""The local files that this process has opened, by number: what a gather has to know of each."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..bytes import Numbers

Number = TypeVar("Number", bound=np.generic)


class Columns(NamedTuple):
    """What is known of each file.

    addresses: int64[files], where its first token is mapped; 0 if it is not.  sentinel_bytes,
    sentinel_values: int64[files] and uint8[files], position, counted from the first token, and
    value of its last byte that is not 0. A value of 0: no such byte is known.
    """

    addresses: Numbers
    sentinel_bytes: Numbers
    sentinel_values: npt.NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class FileRange:
    """The numbers of the files of a dataset.

    first, count: the number of the first one, and how many there are.  is_open: whether they are
    still those of this dataset.
    """

    first: int
    count: int
    is_open: bool = True


class FileTable:
    """Files by number.

    columns: replaced as a whole, so that a gather sees one consistent state.
    """

    def __init__(self) -> None:
        """Begin without a file."""
        empty = np.empty(0, dtype=np.int64)
        self.columns = Columns(empty, empty, np.empty(0, dtype=np.uint8))
        self._free: list[FileRange] = []
        self.renew_lock()

    def renew_lock(self) -> None:
        """Forget who changes it: in a fork, no thread does."""
        self._lock = threading.Lock()

    def add(self, added: Columns) -> FileRange:
        """Number the files of a dataset."""
        count = added.addresses.size
        with self._lock:
            first = end = self.columns.addresses.size
            for free in self._free:
                if free.count >= count or free.first + free.count == end:
                    first, taken = free.first, min(count, free.count)
                    free.first, free.count = free.first + taken, free.count - taken
                    break
            old = self.columns
            self.columns = Columns(
                _replaced(old.addresses, first, added.addresses),
                _replaced(old.sentinel_bytes, first, added.sentinel_bytes),
                _replaced(old.sentinel_values, first, added.sentinel_values),
            )
            return FileRange(first, count)

    def remove(self, closed: FileRange) -> None:
        """Take back the numbers of closed files; may be called twice. The table gets no shorter: a
        gather that has not ended yet finds something in their place, and then that they are closed.
        """
        with self._lock:
            if not closed.is_open:
                return
            closed.is_open = False
            free: list[FileRange] = []
            for each in sorted([*self._free, closed], key=lambda one: one.first):
                if free and free[-1].first + free[-1].count == each.first:
                    free[-1] = FileRange(free[-1].first, free[-1].count + each.count, False)
                elif each.count:
                    free.append(FileRange(each.first, each.count, False))
            self._free = free

    def set_sentinel(self, files: FileRange, index: int, byte: int, value: int) -> None:
        """Learn the sentinel of a file, unless the dataset is closed: the number may be that of
        another file by now.

        index: of the file in its dataset.  byte: counted from the first token.
        """
        with self._lock:
            if not files.is_open:
                return
            known = self.columns
            sentinel_bytes, values = known.sentinel_bytes.copy(), known.sentinel_values.copy()
            sentinel_bytes[files.first + index], values[files.first + index] = byte, value
            self.columns = Columns(known.addresses, sentinel_bytes, values)


def _replaced(
    column: npt.NDArray[Number], first: int, added: npt.NDArray[Number]
) -> npt.NDArray[Number]:
    """Return a column with new values from a place on, which may be its end."""
    return np.concatenate([column[:first], added, column[first + added.size :]])


FILES = FileTable()
os.register_at_fork(after_in_child=FILES.renew_lock)
