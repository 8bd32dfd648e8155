"""The content of a file that is being made: in memory up to a limit, more in the first folder that
takes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..store import TokenStore
from .mapped import NUMBER, Numbers
from .spool import NoPlace, Spool

_LOG = logging.getLogger("tokenfeed.server")

Mapped = TypeVar("Mapped")


class Collected:
    """Content that is appended, and completed once by what follows it."""

    def __init__(
        self, what: str, store: TokenStore, paths: Sequence[str], memory_bytes_max: int
    ) -> None:
        """Begin with none.

        what: the content, such as "document borders".  store: whose it is.  paths: which names the
        file may get, in order.  memory_bytes_max: more lies in a file, if need be a temporary one.
        """
        self._what = what
        self._store = store
        self._paths = paths
        self._memory_bytes_max = memory_bytes_max
        self._waiting = bytearray()
        self._spool: Spool | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether it is so little that it lies in no file."""
        return self._spool is None

    def append(self, content: bytes) -> None:
        """Add all of it.  Raises: InvalidCorpus if it can be written nowhere."""
        with self._somewhere():
            if self._spool is not None:
                self._spool.append(content)
                return
            self._waiting += content
            if len(self._waiting) > self._memory_bytes_max:
                self._spool = self._new_spool((*self._paths, ""))
                self._spool.append(bytes(self._waiting))
                self._waiting.clear()

    def read(self, first_byte: int, end_byte: int) -> bytes:
        """Return some of it.  Raises: InvalidCorpus."""
        if self._spool is None:
            return bytes(self._waiting[first_byte:end_byte])
        with self._somewhere():
            try:
                return os.pread(self._spool.descriptor, end_byte - first_byte, first_byte)
            except OSError as error:
                raise NoPlace(error) from error

    def in_memory(self) -> Numbers:
        """Return all of it; only if it lies in no file."""
        return np.frombuffer(bytes(self._waiting), NUMBER)

    def complete(self, end: bytes, *, named: bool = True) -> str:
        """Add what follows the content in its file, and return the name of the file; "" if it has
        none.

        named: whether it may have one. What is in memory is then written if a folder takes it.
        Raises: InvalidCorpus if it is not in memory, and can be written nowhere.
        """
        if self._spool is None:
            return self._kept(end) if named else ""
        with self._somewhere():
            self._spool.append(end)
            self._spool.finish(named=named)
        if named and not self._spool.path:
            _LOG.warning(
                "%s lie in a temporary file dataset=%s: they are made again at each start; pass "
                "--cache-dir with a folder that can be written",
                *(self._what, self._store.name),
            )
        return self._spool.path

    def mapped(self, make: Callable[[int, str], Mapped]) -> Mapped:
        """Return what is made of the descriptor and the name of the complete file.

        Raises: InvalidCorpus for its OSError.
        """
        assert self._spool is not None
        with mappable(self._what, self._store):
            return make(self._spool.descriptor, self._spool.path)

    def close(self) -> None:
        """Close the file, and remove it unless it is complete. May be called twice."""
        if self._spool is not None:
            self._spool.close()

    def _new_spool(self, paths: Sequence[str]) -> Spool:
        return Spool(self._what, self._store.name, paths)

    def _kept(self, end: bytes) -> str:
        """Write what is in memory to a file, if one can be written.  Returns: its name, or ""."""
        try:
            spool = self._new_spool(self._paths)
        except NoPlace:
            return ""
        try:
            spool.append(bytes(self._waiting) + end)
            spool.finish(named=True)
            return spool.path
        except NoPlace:
            return ""
        finally:
            spool.close()

    @contextmanager
    def _somewhere(self) -> Iterator[None]:
        """Raise InvalidCorpus, with the cure, in place of NoPlace."""
        try:
            yield
        except NoPlace as error:
            cure = "pass --cache-dir with a folder that can be written and has room"
            problem = f"its {self._what} can be written nowhere: {error.error.strerror}; {cure}"
            raise InvalidCorpus(self._store.shards[0].path, problem) from error


@contextmanager
def mappable(what: str, store: TokenStore) -> Iterator[None]:
    """Raise InvalidCorpus, with the cure, in place of the OSError of a map.

    what, store: as for Collected.
    """
    try:
        yield
    except OSError as error:
        problem = f"its {what} cannot be mapped: {error.strerror}"
        cure = "raise vm.max_map_count, or the limit of address space"
        raise InvalidCorpus(store.shards[0].path, f"{problem}; {cure}") from error
