"""One token file as it was opened, and how it has changed since."""

from __future__ import annotations

import enum
import hashlib
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from tokenfeed.errors import InvalidCorpus

from ..door import ReadLayout
from ..formats import Layout
from . import syscalls
from .files import LocalFile, open_local_file, read_part

_TAIL_PAGES = (16, 256)
"""How far from its end a file is searched for a byte that is not 0, step by step."""


class FileChange(enum.Enum):
    """How a file may change while it is served."""

    NONE = "unchanged"
    METADATA = "status changed, with the same modification time"
    REPLACED = "replaced or removed; still serving the opened file"
    APPENDED = "grown; still serving the part that was opened"
    ERASED = "replaced by the file without its erased tokens, which is served now"
    MODIFIED = "truncated or written to in place"


class FileStat(NamedTuple):
    """The parts of a file's stat that change when it is written to.

    ctime_ns: also changes when the file is renamed or its mode is changed. It cannot be restored,
    as `rsync --inplace --times` restores mtime_ns.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStat:
        """Take them from a stat result."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    @property
    def tags(self) -> tuple[str, ...]:
        """None: a file system has no name of a content."""
        return ()


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: its last page, or up to a MiB if the last one is all zeros and the others
    are not a hole.

    sentinel_byte, sentinel_value: position and value of the last byte that is not 0.  A truncation
    of more than zeros removes it, and a hole in its place reads as 0.  A value of 0: the whole tail
    is zeros, and there is neither a sentinel nor a sha256.
    """

    first_byte: int
    sha256: bytes
    sentinel_byte: int
    sentinel_value: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A token file as it was opened.

    place: where it is, without symbolic links, which may lead elsewhere by now.  size_bytes: of the
    whole file then.  facts: its stat when its content was last known to be the same as then.
    """

    path: str
    place: str
    layout: Layout
    size_bytes: int
    facts: FileStat
    tail: Tail

    @classmethod
    def describe(cls, file: LocalFile, read_layout: ReadLayout) -> Shard:
        """Describe an opened file.  Raises: InvalidCorpus if it is not a valid token file."""
        layout = read_layout(file)
        return cls(
            file.path,
            file.place,
            layout,
            file.size_bytes,
            FileStat.of(file.status),
            _read_tail(file, file.size_bytes),
        )

    def detect_change(self, now: FileStat | None) -> FileChange:
        """Return how the file has changed since its facts were taken.

        now: its current stat; None if the file is gone.  Raises: OSError if the end of the file has
        to be compared and cannot be read.
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
        """Return the current stat of its place; None if the file is gone.  Raises: OSError."""
        try:
            return FileStat.of(os.stat(self.place))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def with_stat(self, facts: FileStat) -> Shard:
        """Return it with other facts, for when its content is known to be the same."""
        return replace(self, facts=facts)

    def replaced_by(self, file: LocalFile) -> Shard:
        """Return it with the facts and the tail of another file of its size.  Raises:
        InvalidCorpus.
        """
        facts, tail = FileStat.of(file.status), _read_tail(file, self.size_bytes)
        return replace(self, facts=facts, tail=tail)

    def _only_grew(self) -> bool:
        """Return whether the former tail is unchanged: a longer file may also have been rewritten,
        or truncated and grown again. A tail of zeros cannot tell, so it counts as changed.
        """
        if not self.tail.sentinel_value:
            return False
        tail = read_part(self.place, self.tail.first_byte, self.size_bytes - self.tail.first_byte)
        return hashlib.sha256(tail).digest() == self.tail.sha256

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes, counted from the first token, read without the map.

        For data that is read once: it can neither fault nor affect the pages of the map.  Raises:
        InvalidCorpus if the file has changed.
        """
        with open_local_file(self.place) as file:
            self.require_same(file.status)
            return file.read(self.layout.first_byte + first_byte, size_bytes)

    def require_same(self, status: os.stat_result) -> None:
        """Raise InvalidCorpus if a stat shows that the file has changed."""
        if FileStat.of(status)[:4] != self.facts[:4]:
            raise InvalidCorpus(
                self.path, "changed while it was being opened; start again when it is complete"
            )


def _read_tail(file: LocalFile, size_bytes: int) -> Tail:
    """Return the end of the first size_bytes bytes of a file.  Raises: InvalidCorpus."""
    last_page = max(0, size_bytes - 1) // syscalls.PAGE_BYTES * syscalls.PAGE_BYTES
    first_byte = last_page
    content = file.read(first_byte, size_bytes - first_byte)
    for pages in _TAIL_PAGES:
        longer = max(0, last_page - (pages - 1) * syscalls.PAGE_BYTES)
        if first_byte == 0 or content.strip(b"\0"):
            break
        if file.has_data(longer):
            first_byte = longer
            content = file.read(first_byte, size_bytes - first_byte)
        elif longer == 0:
            first_byte = 0  # all of it is a hole
    sentinel = content.rstrip(b"\0")
    if not sentinel:
        return Tail(first_byte, sha256=b"", sentinel_byte=first_byte, sentinel_value=0)
    digest = hashlib.sha256(content).digest()
    return Tail(first_byte, digest, first_byte + len(sentinel) - 1, sentinel[-1])
