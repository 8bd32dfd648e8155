"""One token file as it was when it was opened, and what has become of it since."""

from __future__ import annotations

import enum
import hashlib
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from tokenfeed.errors import InvalidCorpus

from ..files import OpenFile, open_file, read_part
from ..formats import FormatOptions, Layout, read_layout
from . import syscalls

_TAIL_BYTES_MAX = 16 * syscalls.PAGE_BYTES
"""How far from its end a file is searched for a byte that is not 0."""

_FURTHER_BYTES_MAX = 1 << 20
"""And how much further, once rows of it are gathered that end in 0."""


class FileChange(enum.Enum):
    """What may become of a file that is being served."""

    NONE = "unchanged"
    METADATA = "changed in its status, with the same time of last write"
    REPLACED = "replaced or removed; what was opened is served on"
    APPENDED = "grown; what was opened is served on"
    MODIFIED = "cut short or written to in place"


class FileStat(NamedTuple):
    """What the file system says of a file, and changes when it is written to.

    changed_ns: of its status, which also changes when it is renamed or its mode is; but nobody can
    put it back, as `rsync --inplace --times` puts back written_ns.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStat:
        """Return what a stat says."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: its last page, or the last few where that is nothing but zeros and they
    are no hole.

    sentinel_byte, sentinel_value: place and value of the last byte that is not 0.  Whatever cuts
    off more than zeros takes it away, and a hole grown in its place reads as 0.  A value of 0: the
    whole tail is zeros, there is no sentinel, and no sha256 either.
    """

    first_byte: int
    sha256: bytes
    sentinel_byte: int
    sentinel_value: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A token file as it was when it was opened.

    size_bytes: of the whole file then.  facts: of when its content was last known to be that of
    then.
    """

    path: str
    layout: Layout
    size_bytes: int
    facts: FileStat
    tail: Tail

    @classmethod
    def describe(cls, file: OpenFile, options: FormatOptions) -> Shard:
        """Return what is to be known of an opened file.  Raises: InvalidCorpus if it is no such
        file of tokens.
        """
        layout = read_layout(file, options)
        return cls(file.path, layout, file.size_bytes, FileStat.of(file.status), _read_tail(file))

    def detect_change(self, now: FileStat | None) -> FileChange:
        """Say what has become of the file since its facts were taken.

        now: what the file system says of it; None if there is no such file any more.  Raises:
        OSError where its end has to be read for that, and cannot be.
        """
        if now is None:
            return FileChange.REPLACED
        if now == self.facts:
            return FileChange.NONE
        if now[:4] == self.facts[:4]:
            return FileChange.METADATA
        if now[:2] != self.facts[:2]:
            return FileChange.REPLACED
        grown = now.size_bytes > self.facts.size_bytes and self._only_grew()
        return FileChange.APPENDED if grown else FileChange.MODIFIED

    def current_stat(self) -> FileStat | None:
        """Return what the file system says now; None if there is no such file any more.  Raises:
        OSError where it does not tell.
        """
        try:
            return FileStat.of(os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def with_stat(self, facts: FileStat) -> Shard:
        """Return it with other facts, once its content is known to be the same."""
        return replace(self, facts=facts)

    def _only_grew(self) -> bool:
        """Say whether what was the tail is the same: a longer file may be another, or this one cut
        short and grown again. A tail of zeros cannot tell.
        """
        if not self.tail.sentinel_value:
            return False
        tail = read_part(self.path, self.tail.first_byte, self.size_bytes - self.tail.first_byte)
        return _sha256(tail) == self.tail.sha256

    def further_sentinel(self) -> tuple[int, int] | None:
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

        For what is read once: it can neither fault nor disturb the map's pages.  Raises:
        InvalidCorpus if the file is not as it was.
        """
        with open_file(self.path) as file:
            self.require_same(file.status)
            return file.read(self.layout.first_byte + first_byte, size_bytes)

    def require_same(self, status: os.stat_result) -> None:
        """Raise InvalidCorpus if a stat says that the file is not as it was."""
        if FileStat.of(status)[:4] != self.facts[:4]:
            raise InvalidCorpus(
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
        return Tail(first_byte, sha256=b"", sentinel_byte=first_byte, sentinel_value=0)
    sentinel = content.rstrip(b"\0")
    return Tail(first_byte, _sha256(content), first_byte + len(sentinel) - 1, sentinel[-1])


def _all_zeros(content: bytes) -> bool:
    return content == bytes(len(content))


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
