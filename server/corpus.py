"""The files of one dataset, mapped once, and the gather that reads windows from them.

The only module that opens token files to serve them. All files lie in one reserved address range,
page-aligned and in order, and their descriptors are closed again: 10,000 shards cost 10,000 map
entries and not one descriptor.

The gather never touches the map in user space. A file cut short under a map kills the process that
reads beyond its new end; the kernel's own copy out of the map reports an error instead
(docs/decisions/0003-gather.md).
"""

from __future__ import annotations

import enum
import hashlib
import logging
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import BadCorpus, CorpusChanged
from tokenfeed.frame import FRAME_BYTES_TARGET
from tokenfeed.plan import Windows

from . import kernel
from .formats import HEAD_BYTES, Layout, read_layout

Tokens = npt.NDArray[np.uint8]

_LOG = logging.getLogger("tokenfeed.server")

_SCRATCH_BYTES_KEPT = 4 * FRAME_BYTES_TARGET
"""A scratch file that had to grow beyond this for a giant row is not kept."""
_SCRATCH_FILES_KEPT = 16
"""Each is two descriptors and some MiB."""
_GATHERS_AT_ONCE = 64
"""Enough to keep disk and processor busy; others wait, instead of using up descriptors."""


class Fate(enum.Enum):
    """What may become of a file that is being served."""

    SAME = "unchanged"
    REPLACED = "replaced or removed; what was opened is served on"
    GROWN = "grown; what was opened is served on"
    WRITTEN = "cut short or written to in place"


@dataclass(frozen=True, slots=True)
class Shard:
    """A token file as it was when it was opened."""

    path: str
    layout: Layout
    facts: tuple[int, int, int, int]
    """Device, inode, size in bytes, time of the last write in nanoseconds."""
    witness: tuple[int, int]
    """Place and value of the last byte that is not 0; a value of 0 is that of a page of zeros."""
    last_page_sha256: bytes

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return self.facts[2]

    def fate(self) -> Fate:
        """Say what has become of the file since it was opened."""
        try:
            now = _facts(os.stat(self.path))
        except OSError:
            return Fate.REPLACED
        if now == self.facts:
            return Fate.SAME
        if now[:2] != self.facts[:2]:
            return Fate.REPLACED
        return Fate.GROWN if now[2] > self.size_bytes and self._only_grew() else Fate.WRITTEN

    def _only_grew(self) -> bool:
        """Say whether what was the last page is still the same: a longer file may be another."""
        try:
            with opened(self.path) as (descriptor, _):
                page = _last_page(descriptor, self.size_bytes)[1]
        except (BadCorpus, OSError):
            return False
        return hashlib.sha256(page).digest() == self.last_page_sha256

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes, counted from the first token, read around the map.

        For what is read once: it can neither fault nor disturb the map's pages.  Raises: BadCorpus
        if the file is not as it was.
        """
        with opened(self.path) as (descriptor, status):
            if _facts(status) != self.facts:
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


class Corpus:
    """A dataset's files as one range of memory.

    dtype: of the tokens, stored and served.  token_counts: int64[files].  shards: as they were
    opened.
    """

    def __init__(
        self, name: str, paths: Sequence[str], dtype: np.dtype[np.unsignedinteger]
    ) -> None:
        """Map every file, read-only.  Raises: BadCorpus, naming the file and what is wrong with
        it.
        """
        self.name = name
        self.dtype = dtype
        spans = [_pages_bytes(_size_bytes(path)) for path in paths]
        self._span_bytes = sum(spans)
        self._address = _reserve(paths[0], self._span_bytes)
        firsts = self._address + np.cumsum([0, *spans[:-1]])
        self.shards = [
            _map(path, dtype, address, span)
            for path, address, span in zip(paths, firsts.tolist(), spans, strict=True)
        ]
        kernel.expect_random_access(self._address, self._span_bytes)
        self.token_counts = np.array(
            [shard.layout.token_count for shard in self.shards], dtype=np.int64
        )
        self._token_addresses = firsts + np.array(
            [shard.layout.first_byte for shard in self.shards], dtype=np.int64
        )
        witnesses = np.array([shard.witness for shard in self.shards], dtype=np.int64)
        self._witness_addresses = firsts + witnesses[:, 0]
        self._witness_values = witnesses[:, 1].astype(np.uint8)
        self._scratch = _ScratchPool()
        self._lost = False
        self._warned: set[int] = set()

    def ranges(self, windows: Windows, row_bytes: int) -> kernel.Ranges:
        """Return where windows lie in memory, uint64[n, 2]: address and length in bytes."""
        return _ranges(
            self._token_addresses[windows.shard] + windows.token_offset * self.dtype.itemsize,
            row_bytes,
        )

    @contextmanager
    def gather(self, windows: Windows, row_bytes: int) -> Iterator[Tokens]:
        """Lend the tokens of windows, one row after another, as they are stored: uint8[n *
        row_bytes].

        The array is overwritten by later gathers once the with block ends. Safe in any thread;
        holds no GIL while it copies.
        Raises: CorpusChanged if a file was cut short: then nothing of these rows is handed out.
        """
        self.require_intact()
        # Beside the rows there is room for the witnesses, at most one a row.
        with self._scratch.lend(windows.shard.size * (row_bytes + 1)) as scratch:
            complete = scratch.fill(self.ranges(windows, row_bytes))
            if not complete or self._cut_within(windows, scratch, row_bytes):
                self._lose("a gather met a file that was cut short, or that cannot be read")
            # Once more: if the corpus was closed meanwhile, something else may be mapped there.
            self.require_intact()
            yield scratch.content[: windows.shard.size * row_bytes]

    def look(self) -> None:
        """Look at every file: one written to in place loses the dataset, others cost a warning."""
        for index, shard in enumerate(self.shards):
            fate = shard.fate()
            if fate is Fate.WRITTEN and not self._lost:
                self._lose(f"{shard.path}: {fate.value}")
            elif fate in (Fate.REPLACED, Fate.GROWN) and index not in self._warned:
                self._warned.add(index)
                _LOG.warning("file dataset=%s path=%s: %s", self.name, shard.path, fate.value)

    def require_intact(self) -> None:
        """Raise CorpusChanged if a file was ever found cut short or written to."""
        if self._lost:
            raise CorpusChanged(
                "dataset",
                f"{self.name!r} changed while it was served; restart its server on complete files",
            )

    def close(self) -> None:
        """Unmap the files. A gather still under way fails with CorpusChanged."""
        if self._span_bytes:
            self._lost = True
            kernel.unmap(self._address, self._span_bytes)
            self._span_bytes = 0
            self._scratch.close()

    def _lose(self, reason: str) -> None:
        """Hand out nothing more of this dataset: half a corpus is another corpus."""
        self._lost = True
        _LOG.error("lost dataset=%s: %s", self.name, reason)

    def _cut_within(self, windows: Windows, scratch: _Scratch, row_bytes: int) -> bool:
        """Say whether a row may have run over the end of a file that was cut within a page.

        The rest of that page reads as zeros, without an error; then the row's last byte is 0 as
        well, if the file system takes away the pages beyond the cut before it clears the rest of
        the page with the cut, as ext4 and tmpfs do (docs/decisions/0003-gather.md says where it
        does not). So only files with a row that ends in 0 are suspect, and each has a witness: its
        last byte that is not 0. After a cut before it, it is gone or 0; a cut behind it has only
        taken zeros. Asking for the size of every file of every frame would cost a third of a frame.
        """
        end = windows.shard.size * row_bytes
        suspects = np.unique(windows.shard[scratch.content[row_bytes - 1 : end : row_bytes] == 0])
        if not suspects.size:
            return False
        known = self._witness_values[suspects]
        if not scratch.fill(_ranges(self._witness_addresses[suspects], 1), first_byte=end):
            return True
        if (scratch.content[end : end + suspects.size] != known).any():
            return True
        # Where a file ends in a page of zeros, only the file system can tell.
        return any(
            self.shards[index].fate() is Fate.WRITTEN for index in suspects[known == 0].tolist()
        )


class _Scratch:
    """A file in memory that the kernel copies rows into, and the same bytes as an array."""

    def __init__(self) -> None:
        self.content: Tokens = np.empty(0, dtype=np.uint8)
        self._descriptor = os.memfd_create("tokenfeed")

    def grow(self, size_bytes: int) -> None:
        """Make room for so many bytes."""
        if self.content.size < size_bytes:
            os.ftruncate(self._descriptor, max(size_bytes, FRAME_BYTES_TARGET))
            self.content = np.frombuffer(mmap.mmap(self._descriptor, 0), dtype=np.uint8)

    def fill(self, ranges: kernel.Ranges, first_byte: int = 0) -> bool:
        """Copy mapped ranges to first_byte and on; say whether all of them could be read."""
        return kernel.copy_ranges(self._descriptor, ranges, first_byte)

    def close(self) -> None:
        """Give the memory back once nobody looks at it."""
        os.close(self._descriptor)


class _ScratchPool:
    """Lends scratch files, a bounded number at once, and keeps a few for the next gathers."""

    def __init__(self) -> None:
        self._free: deque[_Scratch] = deque()  # its append and pop are atomic
        self._at_once = threading.BoundedSemaphore(_GATHERS_AT_ONCE)

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[_Scratch]:
        """Lend a scratch file of at least so many bytes that nobody else uses; waits for its turn.

        A borrower must not borrow a second one: all of them might wait for each other.
        """
        with self._at_once:
            try:
                scratch = self._free.pop()
            except IndexError:
                scratch = _Scratch()
            try:
                scratch.grow(size_bytes)
                yield scratch
            finally:
                giant = scratch.content.size > _SCRATCH_BYTES_KEPT
                if giant or len(self._free) >= _SCRATCH_FILES_KEPT:
                    scratch.close()
                else:
                    self._free.append(scratch)

    def close(self) -> None:
        """Close those that nobody uses at present."""
        while self._free:
            self._free.pop().close()


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


def _map(path: str, dtype: np.dtype[np.unsignedinteger], address: int, span_bytes: int) -> Shard:
    with opened(path) as (descriptor, status):
        head = os.pread(descriptor, HEAD_BYTES, 0)
        first_byte, page = _last_page(descriptor, status.st_size)
        shard = Shard(
            path,
            read_layout(path, status.st_size, head, dtype),
            _facts(status),
            _witness(first_byte, page),
            hashlib.sha256(page).digest(),
        )
        if _pages_bytes(shard.size_bytes) != span_bytes:
            raise BadCorpus(
                path, "changed while it was being opened; start again when it is complete"
            )
        try:
            kernel.map_file(address, descriptor, shard.size_bytes)
        except OSError as error:
            cure = "a process maps at most vm.max_map_count files (65530 by default)"
            raise BadCorpus(path, f"cannot be mapped: {error.strerror}; {cure}") from error
        return shard


def _last_page(descriptor: int, size_bytes: int) -> tuple[int, bytes]:
    """Return where the last page of a file of that size begins, and what is in it."""
    first_byte = max(0, size_bytes - 1) // kernel.PAGE_BYTES * kernel.PAGE_BYTES
    return first_byte, os.pread(descriptor, size_bytes - first_byte, first_byte)


def _witness(first_byte: int, page: bytes) -> tuple[int, int]:
    """Return place and value of the last byte of a page that is not 0; value 0 if all are."""
    content = page.rstrip(b"\0")
    return (first_byte + len(content) - 1, content[-1]) if content else (first_byte, 0)


def _reserve(path: str, span_bytes: int) -> int:
    try:
        return kernel.reserve(span_bytes)
    except OSError as error:
        raise BadCorpus(path, f"{span_bytes} bytes cannot be mapped: {error.strerror}") from error


def _size_bytes(path: str) -> int:
    """Return the size of a regular file that is not empty.  Raises: BadCorpus."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadCorpus(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise BadCorpus(path, "is no regular file")
    if status.st_size == 0:
        raise BadCorpus(path, "is empty")
    return status.st_size


def _ranges(addresses: npt.NDArray[np.int64], size_bytes: int) -> kernel.Ranges:
    ranges = np.empty((addresses.size, 2), dtype=np.uint64)
    ranges[:, 0] = addresses
    ranges[:, 1] = size_bytes
    return ranges


def _pages_bytes(size_bytes: int) -> int:
    return -(-size_bytes // kernel.PAGE_BYTES) * kernel.PAGE_BYTES


def _facts(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
