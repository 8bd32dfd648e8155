"""The numbers of an index, which are read by ranges: in memory, or in a mapped file.

Like tokens, the map is never read in user space: the kernel copies parts of it, and reports a file
that was truncated (local/safe_copy.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorpusChanged, Unreadable

from ..local import syscalls
from ..local.safe_copy import best_copier
from .index_file import IndexFile

_LOG = logging.getLogger("tokenfeed.server")

Numbers = npt.NDArray[np.int64]

NUMBER = np.dtype("<i8")
_POLL_SECONDS = 1.0
"""Between two looks at a file that is read, as for tokens."""
_PAUSES_SECONDS = (0.02, 0.1, 0.3, 0.5)
"""Between retries of a failed copy, as for tokens."""
FOOTER = b"TKFINDEX"
"""The end of the file of an index. No byte of it is 0, so a file that was truncated anywhere does
not end like this: within a page it reads as zeros, and beyond it cannot be read."""
_FOOTER = np.frombuffer(FOOTER, NUMBER)[0]


class MappedNumbers:
    """Those of a file that begins with them, and ends with FOOTER. All methods may be called from
    several threads at once.
    """

    def __init__(self, what: str, name: str, file: IndexFile) -> None:
        """Map an opened file, which may be closed afterwards.

        what: the content, such as "document borders".  name: of the dataset.  Raises: OSError.
        """
        self._what = what
        self._name = name
        self._file = file
        self._failed = False
        self._closed = threading.Event()
        self._polled_at = time.monotonic()
        self._copier = best_copier()
        size_bytes = file.facts.size_bytes
        self._span_bytes = -(-size_bytes // syscalls.PAGE_BYTES) * syscalls.PAGE_BYTES
        self._address = syscalls.reserve(self._span_bytes)
        self._closing = threading.Lock()
        try:
            syscalls.map_file(self._address, file.descriptor, size_bytes)
        except OSError:
            self.close()
            raise
        syscalls.expect_random_access(self._address, self._span_bytes)
        self._footer_range = np.array(
            [self._address + size_bytes - len(FOOTER), len(FOOTER)], dtype=np.uint64
        )

    def ranges(self, first: Numbers, counts: Numbers, total: int, patient: bool = True) -> Numbers:
        """Return ranges of the numbers, end to end: int64[total], which is the caller's.

        first, counts: int64[n], index of the first number of each range, and how many it has.
        total: of all ranges.  patient: whether failed reads are retried before Unreadable is
        raised, and their cause is found out.
        Raises: CorpusChanged, Unreadable.
        """
        self._require_intact()
        self._poll()
        ranges = np.empty((first.size + 1, 2), dtype=np.uint64)
        ranges[:-1, 0] = self._address + NUMBER.itemsize * first
        ranges[:-1, 1] = NUMBER.itemsize * counts
        # Last, so that a file that is truncated meanwhile is found.
        ranges[-1] = self._footer_range
        target = np.empty(NUMBER.itemsize * (total + 1), dtype=np.uint8)
        self._with_retries(lambda: self._copier.copy(ranges, target) is None, patient)
        copied = target.view(NUMBER)
        # After the copy: if this was closed meanwhile, other data may have been copied.
        self.require(bool(copied[-1] == _FOOTER))
        return copied[:-1]

    def require(self, is_right: bool) -> None:
        """Raise CorpusChanged, now and at each read from now on, unless what was read is right."""
        self._require_intact()
        if not is_right:
            self._fail("truncated or written to, found by a read")

    def close(self) -> None:
        """Unmap the file. A read in progress fails with CorpusChanged. May be called twice."""
        self._failed = True
        self._closed.set()
        with self._closing:
            if self._span_bytes:
                self._copier.close()
                syscalls.unmap(self._address, self._span_bytes)
                self._span_bytes = 0

    def _poll(self) -> None:
        """Find a file that was written to, since its numbers may be possible ones. At most one
        read in _POLL_SECONDS looks.

        Raises: CorpusChanged.
        """
        now = time.monotonic()
        if now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        if self._file.is_changed() is True:
            self._fail("truncated or written to, found by its times")

    def _with_retries(self, copy: Callable[[], bool], patient: bool) -> None:
        """Copy until it succeeds; about a second if patient, else once.

        Raises: CorpusChanged if the file was truncated, or cannot be examined; else Unreadable.
        """
        if copy():
            return
        for pause_seconds in _PAUSES_SECONDS if patient else ():
            self._require_intact()
            if self._file.is_changed() is True:
                self._fail("truncated or written to, found by a read")
            self._closed.wait(pause_seconds)
            if copy():
                return
        self._require_intact()
        if patient and self._file.is_changed() is not False:
            self._fail("it cannot be read, and its name is gone")
        cure = "retry on this or another server"
        problem = f"has {self._what} that cannot be read at the moment"
        raise Unreadable("dataset", f"{self._name!r} {problem}; {cure}")

    def _require_intact(self) -> None:
        if self._failed:
            raise _changed(self._what, self._name)

    def _fail(self, reason: str) -> None:
        """Deliver nothing more, since others would be another content.  Raises: CorpusChanged."""
        self._failed = True
        _LOG.error("%s failed dataset=%s reason=%s", self._what, self._name, reason)
        self._require_intact()


class HeldNumbers:
    """Those of a small file, in memory. The methods are those of MappedNumbers."""

    def __init__(self, what: str, name: str, numbers: Numbers) -> None:
        """what, name: as for MappedNumbers.  numbers: int64[n], all of them."""
        self._what = what
        self._name = name
        self.all = numbers

    def ranges(self, first: Numbers, counts: Numbers, total: int, patient: bool = True) -> Numbers:
        """Return ranges of the numbers."""
        ends = np.cumsum(counts)
        return self.all[np.arange(total) + np.repeat(first - ends + counts, counts)]

    def require(self, is_right: bool) -> None:
        """Raise CorpusChanged unless what was read is right."""
        if not is_right:
            raise _changed(self._what, self._name)

    def close(self) -> None:
        """Release nothing: the array is garbage when this is."""


IndexNumbers = HeldNumbers | MappedNumbers


def _changed(what: str, name: str) -> CorpusChanged:
    problem = f"has {what} that changed while they were served; restart its server"
    return CorpusChanged("dataset", f"{name!r} {problem}")


def sums(counts: Numbers) -> Numbers:
    """Return int64[n + 1]: what is before each of n counts; and the sum of all."""
    found = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=found[1:])
    return found
