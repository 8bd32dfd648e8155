"""An index of a dataset's documents: where they begin, or which rows their parts fill. It is found
beside the tokens or in the cache folder, and checked; else it is made, and kept there.

Its file:

    numbers         8 bytes each, which are read by ranges
    table           8 bytes each, which are held in memory
    description     JSON: what the index was made from, and facts of it
    its length      8 bytes
    hash            SHA-256 of all above: of the hashes of blocks of the numbers (all of them up to
                    2^30 bytes, blocks spread over more), the table and the description
    footer          8 bytes

Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from tokenfeed.errors import InvalidCorpus
from tokenfeed.stream.identity import content_blocks

from ...runtime.exceptions import log_safe_name
from ...runtime.once_a_machine import INDEX_SUFFIX, LOCK_SUFFIX, locked, remove_unused
from ..door import absolute
from ..store import TokenStore
from . import index_file
from .background_build import Closeable, OnProgress, Stopped, never
from .index_file import DamagedIndex, IndexFile, IndexWriter, index_paths, open_index
from .numbers import FOOTER, NUMBER, HeldNumbers, IndexNumbers, MappedNumbers, Numbers

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_END = struct.Struct(f"<Q32s{len(FOOTER)}s")
_DESCRIPTION_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 2 << 10
_PROGRESS_SECONDS = 5.0

Description = dict[str, Any]
"""Values of JSON."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the file of an index holds.

    table: int64[m].  hashes: of the blocks of the numbers.  path: of the file; "" if it has no
    name.
    """

    numbers: IndexNumbers
    table: Numbers
    hashes: Sequence[bytes]
    path: str


Facts = TypeVar("Facts")
Index = TypeVar("Index", bound=Closeable)


class IndexBuilder(ABC, Generic[Facts, Index]):
    """An index of a dataset, to be found or made.

    store: of the tokens.  paths: where its file may be, in order; none if it has none.  what: its
    content, such as "document borders".  others: ends the line that refuses a file made from
    something else, behind "was made ", such as "with other delimiters".  made_from: what it depends
    on.
    """

    what: str
    others: str
    work: str
    """What the log calls the making of it."""

    def __init__(
        self, store: TokenStore, suffix: str, cache_dir: str | None, made_from: Description
    ) -> None:
        """Begin with what is known before it is made.

        suffix: of the name of its file; "" if it has none.  cache_dir: folder for its file; None:
        beside the tokens.
        """
        self.store = store
        self.made_from = {"version": _VERSION, **made_from}
        self.paths: tuple[str, ...] = ()
        if suffix:
            self.paths = index_paths(store.shards, store.stored, suffix, cache_dir)

    @property
    @abstractmethod
    def takes_long(self) -> bool:
        """Whether to make it takes longer than to wait for another process that does."""

    @abstractmethod
    def _write(self, append: Callable[[bytes], None], progress: Progress) -> _Written:
        """Append its numbers.  Returns: the facts, and the table.  Raises: InvalidCorpus."""

    @abstractmethod
    def _facts_of(self, description: Description, number_count: int) -> Facts:
        """Return the facts of a description.

        Raises: DamagedIndex if this number of numbers cannot have them; ValueError and others if it
        is not of its form.
        """

    @abstractmethod
    def _index_of(self, facts: Facts, content: Content) -> Index:
        """Return the index, which closes the numbers."""

    @abstractmethod
    def _log(self, event: str, index: Index, path: str, seconds: float = 0.0) -> None:
        """Log that it was made, which took so long, or found."""

    def _is_kept(self, is_in_memory: bool, stopped: Stopped) -> bool:
        """Return whether its file gets a name, once all is written."""
        return True

    def find(self) -> Index | None:
        """Return the index of the first of its files that was made from the same; None if there is
        none. One that exists and cannot be used is logged.
        """
        for path in self.paths:
            if (index := self._found_in(path)) is not None:
                self._log("found", index, path)
                return index
        return None

    def make(self, stopped: Stopped = never, on_progress: OnProgress = lambda share: None) -> Index:
        """Make it, and keep its file.

        stopped: whether to stop, which raises InvalidCorpus.
        Raises: InvalidCorpus, CorpusChanged, Unreadable; InvalidRequest if it is too much.
        """
        progress = Progress(self, stopped, on_progress)
        with closing(IndexWriter(self.what, self.store, self.paths)) as writer:
            description, table = self._write(writer.append, progress)
            number_count = writer.size_bytes // NUMBER.itemsize
            hashes = _hashes(writer.read, writer.size_bytes)
            end = self._closing(description, hashes, number_count, table)
            path = writer.complete(end, named=self._is_kept(writer.is_in_memory, stopped))
            numbers = self._numbers(writer.read, writer.size_bytes, writer.file)
        content = Content(numbers, table, hashes, path)
        index = self._index_of(self._facts_of(description, number_count), content)
        self._log("made", index, path, progress.seconds)
        return index

    def make_once(
        self, stopped: Stopped = never, on_progress: OnProgress = lambda share: None
    ) -> Index:
        """Make it once for all processes of this machine that open the same files this way, as the
        ranks of a trainer do with `file:`: the first one makes it, and the others wait for it, and
        find its file. The arguments are those of `make`.

        Eight ranks of a node would each read the same corpus. A file that no folder of the dataset
        takes lies beside the lock. If that folder takes none either, or the first process does not
        get on, each makes its own.
        """
        if not (self.paths and self.takes_long):
            return self.make(stopped, on_progress)
        # The folder may be that of all machines of a cluster.
        parts = (os.uname().nodename, *map(absolute, self.paths), repr(self.made_from))
        name = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]
        with locked(self.what, name + LOCK_SUFFIX, stopped) as lock:
            if lock is not None:
                self.paths += (lock.path.removesuffix(LOCK_SUFFIX) + INDEX_SUFFIX,)
            index = self.find()
            if index is None and lock is not None and not lock.was_waited_for:
                index = self.make(lock.touching(stopped), on_progress)
                remove_unused()
        return index or self.make(stopped, on_progress)

    def _closing(
        self, facts: Description, hashes: Sequence[bytes], number_count: int, table: Numbers
    ) -> bytes:
        """Return what follows the numbers in the file."""
        description = self.made_from | {"counts": [number_count, table.size], "facts": facts}
        text, held = json.dumps(description).encode(), table.astype(NUMBER).tobytes()
        return held + text + _END.pack(len(text), _seal(hashes, held, text), FOOTER)

    def _found_in(self, path: str) -> Index | None:
        try:
            with closing(open_index(path)) as file:
                return self._checked(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedIndex as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            problem = "is damaged"  # a description of another form
        _LOG.warning("%s ignored file=%s: it %s", self.what, log_safe_name(path), problem)
        return None

    def _checked(self, file: IndexFile) -> Index:
        """Return the index of a file whose content is right.

        Raises: DamagedIndex, OSError, InvalidCorpus; ValueError and others for a wrong description.
        """
        end_byte = file.facts.size_bytes - _END.size
        size_bytes, seal, footer = _END.unpack(file.read(end_byte, file.facts.size_bytes))
        if footer != FOOTER:
            raise DamagedIndex("is truncated")
        most = _DESCRIPTION_BYTES_MAX + _SHARD_BYTES_MAX * len(self.store.shards)
        if size_bytes > min(end_byte, most):
            raise DamagedIndex("is damaged")
        text = file.read(end_byte - size_bytes, end_byte)
        description = json.loads(text)
        description_facts = description.pop("facts")
        number_count, table_count = description.pop("counts")
        if description != self.made_from:
            raise DamagedIndex(f"was made {self.others}")
        numbers_bytes = NUMBER.itemsize * number_count
        if numbers_bytes + NUMBER.itemsize * table_count + size_bytes != end_byte:
            raise DamagedIndex("is truncated")
        table = file.read(numbers_bytes, end_byte - size_bytes)
        hashes = _hashes(file.read, numbers_bytes)
        if seal != _seal(hashes, table, text):
            raise DamagedIndex("is damaged")
        facts = self._facts_of(description_facts, number_count)
        numbers = self._numbers(file.read, numbers_bytes, lambda: file)
        content = Content(numbers, np.frombuffer(table, NUMBER), hashes, file.path)
        return self._index_of(facts, content)

    def _numbers(
        self, read: Callable[[int, int], bytes], size_bytes: int, file: Callable[[], IndexFile]
    ) -> IndexNumbers:
        """Return the numbers, in memory or mapped.  Raises: InvalidCorpus, with the cure."""
        if size_bytes <= index_file.MEMORY_BYTES_MAX:
            held = np.frombuffer(read(0, size_bytes), NUMBER)
            return HeldNumbers(self.what, self.store.name, held)
        try:
            return MappedNumbers(self.what, self.store.name, file())
        except OSError as error:
            problem = f"its {self.what} cannot be mapped: {error.strerror}"
            cure = "raise vm.max_map_count, or the limit of address space"
            raise InvalidCorpus(self.store.shards[0].path, f"{problem}; {cure}") from error


_Written = tuple[Description, Numbers]


class Progress:
    """Tells how far the making of an index is, and logs it.

    stopped: whether the making has to stop.  seconds: since it began.
    """

    def __init__(
        self, builder: IndexBuilder[Any, Any], stopped: Stopped, on_progress: OnProgress
    ) -> None:
        """Begin; the arguments are those of `IndexBuilder.make`."""
        self.stopped = stopped
        self._builder = builder
        self._on_progress = on_progress
        self._began_at = self._logged_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._began_at

    def take(self, share: float) -> None:
        """Take the share that is done, in [0, 1]."""
        self._on_progress(share)
        if time.monotonic() - self._logged_at >= _PROGRESS_SECONDS:
            self._logged_at = time.monotonic()
            name = self._builder.store.name
            _LOG.info("%s dataset=%s done=%.1f%%", self._builder.work, name, 100 * share)


def _hashes(read: Callable[[int, int], bytes], size_bytes: int) -> list[bytes]:
    """Return the hashes of the blocks of numbers.  read: returns bytes from one to another."""
    return [hashlib.sha256(read(*block)).digest() for block in content_blocks(size_bytes)]


def _seal(hashes: Sequence[bytes], table: bytes, text: bytes) -> bytes:
    return hashlib.sha256(b"".join((*hashes, table, text))).digest()
