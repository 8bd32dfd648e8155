"""One token file as it was when it was opened, and what has become of it since."""

from __future__ import annotations

import enum
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import BadCorpus

from . import kernel
from .formats import HEAD_BYTES, Layout, read_layout

_TAIL_BYTES_MAX = 16 * kernel.PAGE_BYTES
"""How far from its end a file is searched for a byte that is not 0."""


class Fate(enum.Enum):
    """What may become of a file that is being served."""

    SAME = "unchanged"
    TOUCHED = "changed in its status, with the same time of last write"
    REPLACED = "replaced or removed; what was opened is served on"
    GROWN = "grown; what was opened is served on"
    WRITTEN = "cut short or written to in place"


class Facts(NamedTuple):
    """What the file system says of a file, and changes when it is written to.

    changed_ns: of its status, which also changes when it is renamed or its mode is; but nobody can
    put it back, as `rsync --inplace --times` puts back written_ns.
    """

    device: int
    inode: int
    size_bytes: int
    written_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: its last page, or the last few where that is nothing but zeros.

    witness_byte, witness_value: place and value of the last byte that is not 0.  Whatever cuts off
    more than zeros takes it away, and a hole grown in its place reads as 0.  A value of 0: the
    whole tail is zeros, there is no witness, and no sha256 either.
    """

    first_byte: int
    sha256: bytes
    witness_byte: int
    witness_value: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A token file as it was when it was opened.

    size_bytes: of the whole file then.  facts: of when its content was last known to be that of
    then.
    """

    path: str
    layout: Layout
    size_bytes: int
    facts: Facts
    tail: Tail

    @classmethod
    def describe(
        cls, path: str, descriptor: int, status: os.stat_result, dtype: np.dtype[np.unsignedinteger]
    ) -> Shard:
        """Return what is to be known of an opened file.  Raises: BadCorpus if it is no such file
        of tokens.
        """
        head = os.pread(descriptor, HEAD_BYTES, 0)
        layout = read_layout(path, status.st_size, head, dtype)
        tail = _read_tail(descriptor, status.st_size)
        return cls(path, layout, status.st_size, _facts(status), tail)

    def fate(self) -> Fate:
        """Say what has become of the file since its facts were taken."""
        try:
            now = _facts(os.stat(self.path))
        except OSError:
            return Fate.REPLACED
        if now == self.facts:
            return Fate.SAME
        if now[:4] == self.facts[:4]:
            return Fate.TOUCHED
        if now[:2] != self.facts[:2]:
            return Fate.REPLACED
        grown = now.size_bytes > self.facts.size_bytes and self._only_grew()
        return Fate.GROWN if grown else Fate.WRITTEN

    def as_it_is(self) -> Shard:
        """Return it with the facts of now, once its content is known to be the same.  Raises:
        OSError.
        """
        return replace(self, facts=_facts(os.stat(self.path)))

    def _only_grew(self) -> bool:
        """Say whether what was the tail is the same: a longer file may be another, or this one cut
        short and grown again. A tail of zeros cannot tell.
        """
        try:
            with opened(self.path) as (descriptor, _):
                tail = _pread_to(descriptor, self.tail.first_byte, self.size_bytes)
        except (BadCorpus, OSError):
            return False
        return bool(self.tail.witness_value) and _sha256(tail) == self.tail.sha256

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes, counted from the first token, read around the map.

        For what is read once: it can neither fault nor disturb the map's pages.  Raises: BadCorpus
        if the file is not as it was.
        """
        with opened(self.path) as (descriptor, status):
            if _facts(status)[:4] != self.facts[:4]:
                raise BadCorpus(
                    self.path, "changed while it was being opened; start again when it is complete"
                )
            try:
                content = os.pread(descriptor, size_bytes, self.layout.first_byte + first_byte)
            except OSError as error:
                raise BadCorpus(self.path, f"cannot be read: {error.strerror}") from error
        if len(content) != size_bytes:
            raise BadCorpus(
                self.path, "became shorter while it was being read; start again when it is complete"
            )
        return content


@contextmanager
def opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Lend a descriptor of a file and its status.  Raises: BadCorpus, naming the file, if it cannot
    be read.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadCorpus(path, f"cannot be read: {error.strerror}") from error
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def size_on_disk(path: str) -> int:
    """Return the size in bytes of a regular file that is not empty.  Raises: BadCorpus."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadCorpus(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise BadCorpus(path, "is no regular file")
    if status.st_size == 0:
        raise BadCorpus(path, "is empty")
    return status.st_size


def _read_tail(descriptor: int, size_bytes: int) -> Tail:
    last_page = max(0, size_bytes - 1) // kernel.PAGE_BYTES * kernel.PAGE_BYTES
    first_byte = last_page
    content = _pread_to(descriptor, first_byte, size_bytes)
    if _all_zeros(content):
        first_byte = max(0, last_page + kernel.PAGE_BYTES - _TAIL_BYTES_MAX)
        content = _pread_to(descriptor, first_byte, size_bytes)
    if _all_zeros(content):
        return Tail(first_byte, sha256=b"", witness_byte=first_byte, witness_value=0)
    witness = content.rstrip(b"\0")
    return Tail(first_byte, _sha256(content), first_byte + len(witness) - 1, witness[-1])


def _all_zeros(content: bytes) -> bool:
    return content == bytes(len(content))


def _pread_to(descriptor: int, first_byte: int, end_byte: int) -> bytes:
    return os.pread(descriptor, end_byte - first_byte, first_byte)


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _facts(status: os.stat_result) -> Facts:
    return Facts(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )
