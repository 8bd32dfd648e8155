"""One token file as it was when it was opened, and what has become of it since."""

from __future__ import annotations

import enum
import hashlib
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from tokenfeed.errors import BadCorpus

from ..files import OpenFile, open_file, read_part
from ..formats import Asked, Layout, read_layout
from . import syscalls

_TAIL_BYTES_MAX = 16 * syscalls.PAGE_BYTES
"""How far from its end a file is searched for a byte that is not 0."""

_FURTHER_BYTES_MAX = 1 << 20
"""And how much further, once rows of it are gathered that end in 0."""


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

    @classmethod
    def of(cls, status: os.stat_result) -> Facts:
        """Return what a stat says."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: its last page, or the last few where that is nothing but zeros and they
    are no hole.

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
    def describe(cls, file: OpenFile, asked: Asked) -> Shard:
        """Return what is to be known of an opened file.  Raises: BadCorpus if it is no such file
        of tokens.
        """
        layout = read_layout(file, asked)
        return cls(file.path, layout, file.size_bytes, Facts.of(file.status), _read_tail(file))

    def fate(self, now: Facts | None) -> Fate:
        """Say what has become of the file since its facts were taken.

        now: what the file system says of it; None if there is no such file any more.  Raises:
        OSError where its end has to be read for that, and cannot be.
        """
        if now is None:
            return Fate.REPLACED
        if now == self.facts:
            return Fate.SAME
        if now[:4] == self.facts[:4]:
            return Fate.TOUCHED
        if now[:2] != self.facts[:2]:
            return Fate.REPLACED
        grown = now.size_bytes > self.facts.size_bytes and self._only_grew()
        return Fate.GROWN if grown else Fate.WRITTEN

    def facts_now(self) -> Facts | None:
        """Return what the file system says now; None if there is no such file any more.  Raises:
        OSError where it does not tell.
        """
        try:
            return Facts.of(os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def with_facts(self, facts: Facts) -> Shard:
        """Return it with other facts, once its content is known to be the same."""
        return replace(self, facts=facts)

    def _only_grew(self) -> bool:
        """Say whether what was the tail is the same: a longer file may be another, or this one cut
        short and grown again. A tail of zeros cannot tell.
        """
        if not self.tail.witness_value:
            return False
        tail = read_part(self.path, self.tail.first_byte, self.size_bytes - self.tail.first_byte)
        return _sha256(tail) == self.tail.sha256

    def further_witness(self) -> tuple[int, int] | None:
        """Return place and value of the last byte that is not 0, where the tail has none; a value
        of 0 where the whole file has none, and None where it is too far away to be looked for.
        Raises: OSError.
        """
        first_byte = max(0, self.tail.first_byte - _FURTHER_BYTES_MAX)
        content = read_part(self.path, first_byte, self.tail.first_byte - first_byte).rstrip(b"\0")
        if content:
            return first_byte + len(content) - 1, content[-1]
        return None if first_byte else (0, 0)

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes, counted from the first token, read around the map.

        For what is read once: it can neither fault nor disturb the map's pages.  Raises: BadCorpus
        if the file is not as it was.
        """
        with open_file(self.path) as file:
            self.require_same(file.status)
            return file.read(self.layout.first_byte + first_byte, size_bytes)

    def require_same(self, status: os.stat_result) -> None:
        """Raise BadCorpus if a stat says that the file is not as it was."""
        if Facts.of(status)[:4] != self.facts[:4]:
            raise BadCorpus(
                self.path, "changed while it was being opened; start again when it is complete"
            )


def _read_tail(file: OpenFile) -> Tail:
    last_page = max(0, file.size_bytes - 1) // syscalls.PAGE_BYTES * syscalls.PAGE_BYTES
    first_byte = last_page
    content = file.read(first_byte, file.size_bytes - first_byte)
    longer = max(0, last_page + syscalls.PAGE_BYTES - _TAIL_BYTES_MAX)
    if _all_zeros(content) and file.has_data(longer):
        first_byte = longer
        content = file.read(first_byte, file.size_bytes - first_byte)
    if _all_zeros(content):
        return Tail(first_byte, sha256=b"", witness_byte=first_byte, witness_value=0)
    witness = content.rstrip(b"\0")
    return Tail(first_byte, _sha256(content), first_byte + len(witness) - 1, witness[-1])


def _all_zeros(content: bytes) -> bool:
    return content == bytes(len(content))


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
