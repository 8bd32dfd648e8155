"""Files in memory, with a delay: a second door, and a second way to read bytes. Slow and simple.

with files_in_memory({"a/train.bin": content}) as memory:
    open_dataset(["memory://a/train.bin"])
"""

from __future__ import annotations

import errno
import fnmatch
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.server.storage.bytes import (
    CHANGED,
    PIECE_BYTES,
    ByteArray,
    Extents,
    IsErasedFile,
    ReadCounts,
    SameContent,
    Submit,
)
from tokenfeed.server.storage.door import (
    DOORS,
    Entry,
    ReadLayout,
    StorageOptions,
    in_cache,
    unreadable,
)
from tokenfeed.server.storage.formats import Layout
from tokenfeed.server.storage.open_file import HEAD_BYTES, OpenFile

SCHEME = "memory"


@dataclass(frozen=True)
class MemoryFacts:
    """Files in memory do not change."""

    size_bytes: int
    mtime_ns: int = 1
    ctime_ns: int = 1
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryShard:
    """A file of a dataset."""

    path: str
    layout: Layout
    content: bytes

    @property
    def place(self) -> str:
        return self.path

    @property
    def size_bytes(self) -> int:
        return len(self.content)


class MemoryFile(OpenFile):
    """An open file."""

    modified_ns = 1
    version = None

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.content = content
        self.head = content[:HEAD_BYTES]

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        found = self.content[first_byte : first_byte + size_bytes]
        if len(found) != size_bytes:
            problem = f"has {len(found)} of {size_bytes} bytes from byte {first_byte} on; it may be"
            raise InvalidCorpus(self.path, f"{problem} truncated")
        return found


class MemoryBytes:
    """`Bytes` of files in memory. Each extent that was not advised takes delay_seconds."""

    kind = SCHEME
    joint = None
    may_change = False
    first_file = 0

    def __init__(
        self, name: str, shards: Sequence[MemoryShard], delay_seconds: float = 0.0
    ) -> None:
        self.shards = shards
        self.delay_seconds = delay_seconds
        self.failed = False
        self.gathers = 0
        self.due_seconds: list[float] = []
        self._name = name
        self._ready: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self._waits = self._advised_bytes = 0

    @property
    def facts(self) -> list[MemoryFacts]:
        return [MemoryFacts(shard.size_bytes) for shard in self.shards]

    @property
    def memory_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def cold(self) -> bool:
        return self.delay_seconds > 0

    @property
    def read_counts(self) -> ReadCounts:
        return ReadCounts(self._waits, self._advised_bytes)

    def gather(self, extents: Extents, target: ByteArray, patient: bool = True) -> None:
        self.require_intact()
        self.gathers += 1
        self._wait_for(extents)
        target[:] = 0
        for file, first, size, end in zip(
            *(column.tolist() for column in (*extents[:2], extents.sizes, extents.ends)),
            strict=True,
        ):
            content = self.read(file, first, size)
            target[end - size : end] = np.frombuffer(content, np.uint8)
        self.require_intact()

    def ready_count(self, extents: Extents) -> int:
        if not self.delay_seconds:
            return extents.file.size
        now = time.monotonic()
        with self._lock:
            for count, place in enumerate(_places(extents)):
                if self._ready.get(place, math.inf) > now:
                    return count
        return extents.file.size

    def advise(self, extents: Extents, due_seconds: float = 0.0) -> None:
        self.due_seconds.append(due_seconds)
        if self.delay_seconds:
            self.read_ahead(extents)

    def read_ahead(self, extents: Extents) -> None:
        due = time.monotonic() + self.delay_seconds
        with self._lock:
            self._advised_bytes += extents.total_bytes
            for place in _places(extents):
                self._ready.setdefault(place, due)

    holds_groups = False

    def require_room(self, extents: Extents) -> None:
        """Raise nothing: nothing is held."""

    def hold(self, owner: object, present: Extents, following: Extents) -> None:
        pass

    def arrive(self, extents: Extents) -> None:
        """Have extents at hand from now on."""
        with self._lock:
            self._ready |= dict.fromkeys(_places(extents), 0.0)

    def seem_resident(self, extents: Extents) -> bool:
        return not self.delay_seconds

    def observe(self, waits: int) -> None:
        self._waits += waits

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        first = self.shards[shard].layout.first_byte + first_byte
        return self.shards[shard].content[first : first + size_bytes]

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        self.require_intact()
        return self.read(shard, first_byte, size_bytes)

    def bring_in(self) -> Iterator[int]:
        done_bytes = 0
        for index, shard in enumerate(self.shards):
            layout = shard.layout
            for first in range(0, layout.content_bytes, PIECE_BYTES):
                size_bytes = min(PIECE_BYTES, layout.content_bytes - first)
                done_bytes += size_bytes
                yield done_bytes
            done_bytes = sum(each.size_bytes for each in self.shards[: index + 1])
            yield done_bytes

    def require_intact(self) -> None:
        if self.failed:
            raise CorpusChanged("dataset", f"{self._name!r} {CHANGED}")

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        self.failed = True

    def allow_replacement(self, is_erased_file: IsErasedFile) -> None:
        """Files in memory are not erased."""

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Files in memory do not change."""

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        return not (self.failed or stopped())

    def close(self) -> None:
        self.failed = True

    def _wait_for(self, extents: Extents) -> None:
        """Wait until all of it would have arrived, if each took its time beside the others."""
        if not self.delay_seconds:
            return
        now = time.monotonic()
        with self._lock:
            due = max(
                self._ready.pop(place, now + self.delay_seconds) for place in _places(extents)
            )
        if due > now:
            self._waits += 1
            time.sleep(due - now)


def _places(extents: Extents) -> Iterator[tuple[int, int]]:
    """Yield the file and the first byte of each extent."""
    return zip(extents.file.tolist(), extents.first_byte.tolist(), strict=True)


@dataclass
class MemoryDoor:
    """A `Door`. files: content by path, without the scheme.  delay_seconds: of each read of tokens.

    opened: the paths of `open`, in order.
    """

    files: dict[str, bytes]
    delay_seconds: float = 0.0
    opened: list[str] = field(default_factory=list)

    def exists(self, path: str) -> bool:
        return self.entry(path) is not None

    def entry(self, path: str, *, at_once: bool = False) -> Entry | None:
        name = self._name(path)
        if name in self.files:
            return Entry(path, False, len(self.files[name]), hash(self.files[name]))
        is_folder = any(each.startswith(f"{name}/") for each in self.files)
        return Entry(path, True) if is_folder else None

    def entries(self, folder: str, suffixes: tuple[str, ...] = ("",)) -> list[Entry]:
        begin = f"{self._name(folder)}/"
        below = {each[len(begin) :] for each in self.files if each.startswith(begin)}
        names = [name for each in below if (name := each.partition("/")[0]).endswith(suffixes)]
        found = [self.entry(os.path.join(folder, name)) for name in dict.fromkeys(names)]
        return [each for each in found if each is not None]

    def glob(self, pattern: str, *, recursive: bool = True) -> list[str]:
        expression = fnmatch.translate(self._name(pattern)).replace(".*", "[^/]*")
        if recursive:
            expression = expression.replace("[^/]*[^/]*/", "(?:.*/)?")
        return [f"{SCHEME}://{each}" for each in self.files if re.match(expression, each)]

    def is_link(self, path: str) -> bool:
        return False

    def real(self, path: str) -> str:
        return path

    def open(self, path: str) -> MemoryFile:
        self.opened.append(path)
        if self._name(path) not in self.files:
            raise unreadable(path, FileNotFoundError(errno.ENOENT, "No such file or directory"))
        return MemoryFile(path, self.files[self._name(path)])

    def erased(self, path: str) -> bytes:
        return b""

    def content(self, path: str, bytes_max: int) -> bytes | None:
        found = self.files.get(self._name(path))
        if found is not None and len(found) > bytes_max:
            raise ValueError(f"is not a regular file of at most {bytes_max} bytes")
        return found

    def put(self, path: str, content: bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opening(self) -> AbstractContextManager[None]:
        return nullcontext()

    def beside(self, path: str, name: str) -> str:
        return in_cache(path, name)

    def bytes_of(
        self, name: str, paths: Sequence[str], read_layout: ReadLayout, storage: StorageOptions
    ) -> tuple[MemoryBytes, str]:
        shards = []
        for path in paths:
            with self.open(path) as file:
                shards.append(MemoryShard(path, read_layout(file), file.content))
        return MemoryBytes(name, shards, self.delay_seconds), SCHEME

    def _name(self, path: str) -> str:
        return os.path.normpath(path.removeprefix(f"{SCHEME}://"))


@contextmanager
def files_in_memory(files: Mapping[str, bytes], delay_seconds: float = 0.0) -> Iterator[MemoryDoor]:
    """Lend a door to files, which are memory://PATH until the end of the with block."""
    door = MemoryDoor(dict(files), delay_seconds)
    DOORS[SCHEME] = door
    try:
        yield door
    finally:
        del DOORS[SCHEME]
