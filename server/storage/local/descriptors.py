"""The descriptors of a store's files, all of which stay open, as long as the limit has room."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

from ..option_names import READ

_SPARE = 256
"""Descriptors reserved for connections and everything else except token files."""


class Descriptors:
    """Files that stay open until `close`. Any number of threads may use them.

    numbers: the descriptor of each file; -1 once they are closed. What a thread reads meanwhile may
    be of another file: a reader has to ask afterwards whether the store is closed.
    """

    def __init__(self) -> None:
        """Begin without a file."""
        self.numbers: list[int] = []
        self._lock = threading.Lock()  # so that no file is replaced once it is closed

    def add(self, descriptor: int) -> None:
        """Add a file, whose index is the next one.  descriptor: is duplicated."""
        _set_up(descriptor)
        self.numbers.append(os.dup(descriptor))

    def replace(self, file: int, descriptor: int) -> None:
        """Replace a file, unless it is closed.  descriptor: is duplicated."""
        _set_up(descriptor)
        with self._lock:
            if (number := self.numbers[file]) >= 0:
                os.dup2(descriptor, number, inheritable=False)

    def close(self) -> None:
        """Close all files. May be called twice."""
        with self._lock:
            closed = [number for number in self.numbers if number >= 0]
            self.numbers[:] = [-1] * len(self.numbers)
        for number in closed:
            os.close(number)


def require_descriptors(paths: Sequence[str]) -> None:
    """Raise the soft limit of descriptors as far as files need it.

    Raises: InvalidCorpus if the hard limit has no room for them.
    """
    open_now = len(os.listdir("/proc/self/fd"))
    needed = open_now + len(paths) + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    except (ValueError, OSError):
        hard = soft
    if hard < needed:
        raise InvalidCorpus(
            paths[0],
            f"{len(paths)} files need descriptors, but the hard limit is {hard}, of which "
            f"{open_now} are open and {_SPARE} reserved for connections; raise the "
            f"hard limit of open files (ulimit -Hn, LimitNOFILE), or pass {READ.to('map')}",
            READ.to("map"),
        )


def _set_up(descriptor: int) -> None:
    """Make reads of an open file wait for data, and turn off the kernel's own read-ahead."""
    # Files are opened with O_NONBLOCK because of pipes; some file systems honor it for files too.
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    except OSError:
        pass  # only advice
