"""The descriptors of a store's files: all of them, or those used last where they are too many.

A file that is not open is opened when it is read, which may wait for a file server. A descriptor in
use is never closed: its number would belong to another file, and a row would come from there.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tokenfeed.errors import InvalidCorpus

from ..option_names import READ

Result = TypeVar("Result")

_LOG = logging.getLogger("tokenfeed.server")

_SPARE = 256
"""Descriptors reserved for connections and everything else except token files."""
_KEPT_MIN = 16
"""With fewer, threads would mostly close each other's files."""
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


@dataclass(eq=False, slots=True)
class _Opened:
    """users: calls that use the descriptor now.  is_kept: otherwise the last of them closes it."""

    descriptor: int
    users: int = 0
    is_kept: bool = True


class Descriptors:
    """Files of which all, or only those used last, stay open. Any number of threads may use them.

    open_max: how many stay open; None: all. A thread that opens one more may exceed it for a
    moment.
    """

    def __init__(self, open_max: int | None, open_again: Callable[[int], int]) -> None:
        """Begin without a file.

        open_max: how many stay open; None: all.  open_again: opens a file, by its index, and
        returns the descriptor; raises OSError, also if it is another file by now.
        """
        self.open_max = open_max
        self.all_open = open_max is None
        self._open_again = open_again
        self._numbers: list[int] = []
        """While all are open: their descriptors; -1 once they are closed."""
        self._file_count = 0
        # Guards what follows. Only a stale file is opened or closed under it, for it may take long.
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._closed = False
        self._replaced_count = 0

    def add(self, descriptor: int) -> None:
        """Add a file, whose index is the next one.  descriptor: is duplicated."""
        _set_up(descriptor)
        opened = _Opened(os.dup(descriptor))
        self._keep(self._file_count, opened, self._replaced_count)
        self._file_count += 1
        if self.all_open:
            self._numbers.append(opened.descriptor)

    def call(self, function: Callable[..., Result], file: int, *arguments: object) -> Result:
        """Return function(descriptor, *arguments).  file: its index.  Raises: OSError."""
        opened = self._take(file)
        try:
            return function(opened.descriptor, *arguments)
        finally:
            with self._lock:
                opened.users -= 1
                is_last = not (opened.is_kept or opened.users)
            if is_last:
                os.close(opened.descriptor)

    def for_preadv(self) -> tuple[Sequence[int], Callable[..., int]]:
        """Return a number of each file, and a preadv to which that is a descriptor."""
        # The list itself: a call per row would add a quarter to the time of a gather.
        if self.all_open:
            return self._numbers, os.preadv
        return range(self._file_count), partial(self.call, os.preadv)

    def replace(self, file: int, descriptor: int) -> None:
        """Replace a stale handle, unless it is closed.  descriptor: of the same file; is
        duplicated.
        """
        _set_up(descriptor)
        with self._lock:
            self._replaced_count += 1
            if (opened := self._opened.get(file)) is not None:
                os.dup2(descriptor, opened.descriptor, inheritable=False)

    def close(self) -> None:
        """Close all files; those in use, after their use. May be called twice."""
        with self._lock:
            self._closed = True
            self._numbers[:] = [-1] * len(self._numbers)
        self._keep_open(0)

    def _take(self, file: int) -> _Opened:
        """Return an open file, which stays open while it has users."""
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if (opened := self._opened.get(file)) is not None:
                self._opened.move_to_end(file)
                opened.users += 1
                return opened
        while True:
            count = self._replaced_count
            opened = _Opened(self._descriptor_of(file), users=1)
            if self._keep(file, opened, count):
                return opened
            os.close(opened.descriptor)

    def _descriptor_of(self, file: int) -> int:
        """Open a file. If other parts of the process have taken all descriptors, close others."""
        while True:
            try:
                descriptor = self._open_again(file)
                break
            except OSError as error:
                open_now = len(self._opened)
                if error.errno not in _TOO_MANY or not open_now:
                    raise
                self._keep_open(open_now - 1)
        _set_up(descriptor)
        return descriptor

    def _keep(self, file: int, opened: _Opened, replaced_count: int) -> bool:
        """Keep a file open until others were used more recently, unless another thread has.

        Returns: False, without keeping it, if a file was replaced since this many were: it may be
        this one, as it was before.
        """
        with self._lock:
            if replaced_count != self._replaced_count:
                return False
            opened.is_kept = not (self._closed or file in self._opened)
            if opened.is_kept:
                self._opened[file] = opened
        if self.open_max is not None:
            self._keep_open(self.open_max)
        return True

    def _keep_open(self, count: int) -> None:
        """Close the files that were used least recently, all but count."""
        unused = []
        with self._lock:
            while len(self._opened) > count:
                _, opened = self._opened.popitem(last=False)
                opened.is_kept = False
                if not opened.users:
                    unused.append(opened.descriptor)
        for descriptor in unused:
            os.close(descriptor)


def descriptors_for(
    dataset_name: str, paths: Sequence[str], open_again: Callable[[int], int]
) -> Descriptors:
    """Return descriptors for files: of all, if the hard limit has room for them; the soft limit is
    raised as needed. Otherwise for half of the room: the rest is for connections, and for the files
    of other datasets.

    open_again: as in Descriptors.  Raises: InvalidCorpus if there is hardly any room.
    """
    open_now = len(os.listdir("/proc/self/fd"))
    needed = open_now + len(paths) + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return Descriptors(None, open_again)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    except (ValueError, OSError):
        hard = soft
    if hard >= needed:
        return Descriptors(None, open_again)
    open_max = (hard - open_now - _SPARE) // 2
    if open_max < _KEPT_MIN:
        raise InvalidCorpus(
            paths[0],
            f"{len(paths)} files need descriptors, but the hard limit is {hard}, of which "
            f"{open_now} are open and {_SPARE} reserved for connections; raise the "
            f"hard limit of open files (ulimit -Hn, LimitNOFILE), or pass {READ.to('map')}",
            READ.to("map"),
        )
    _LOG.warning(
        "files are opened as they are read dataset=%s files=%d open=%d: to keep all of them open, "
        "raise the hard limit of open files (ulimit -Hn, LimitNOFILE)",
        dataset_name,
        len(paths),
        open_max,
    )
    return Descriptors(open_max, open_again)


def _set_up(descriptor: int) -> None:
    """Make reads of an open file wait for data, and turn off the kernel's own read-ahead."""
    # Files are opened with O_NONBLOCK because of pipes; some file systems honor it for files too.
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    except OSError:
        pass  # only advice
