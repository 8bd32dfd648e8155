"""The files of one dataset, mapped once, and the gather that reads out of them: for local disks.

The only module that maps token files. All files are mapped into one reserved address range,
page-aligned and in order, and their descriptors are closed again: 10,000 shards cost 10,000 map
entries and no descriptor.

The gather never reads the map in user space: if a file was truncated, a read beyond its new end
kills the process. The kernel's own copy out of the map reports an error instead (safe_copy.py).
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

from ...runtime.threads.poll_rate import PollRate
from ..bytes import PIECE_BYTES, ByteArray, Extents, Joint, Numbers
from ..door import ReadLayout
from ..option_names import READ
from . import syscalls
from .file_table import FILES
from .files import LocalFile, open_local_file, size_on_disk
from .safe_copy import Copier, best_copier
from .shard import Shard
from .watched_bytes import FailedRead, WatchedBytes, suspect_files

_PIECES_AHEAD = 4
_READ_BYTES = 128 << 10
"""Size of one request to the kernel. Of a longer range it silently reads only the first part, as
long as the disk's read_ahead_kb."""


class MappedBytes(WatchedBytes):
    """A dataset's files as one range of memory; `Bytes`."""

    kind = "map"

    def __init__(
        self, name: str, paths: Sequence[str], read_layout: ReadLayout, poll_rate: PollRate | None
    ) -> None:
        """Map every file, read-only.

        name: of the dataset.  read_layout: reads the layout of each.
        Raises: InvalidCorpus, naming the file and the problem.
        """
        spans = [_pages_bytes(size_on_disk(path)) for path in paths]
        self._span_bytes = sum(spans)
        try:
            self._address = syscalls.reserve(self._span_bytes)
        except OSError as error:
            problem = f"{self._span_bytes} bytes cannot be mapped: {error.strerror}"
            raise InvalidCorpus(paths[0], problem) from error
        try:
            self._firsts = self._address + np.cumsum([0, *spans[:-1]])
            shards = [
                _map(path, read_layout, address, span)
                for path, address, span in zip(paths, self._firsts.tolist(), spans, strict=True)
            ]
            super().__init__(name, shards, poll_rate, addresses=self._firsts)
        except BaseException:
            syscalls.unmap(self._address, self._span_bytes)
            raise
        syscalls.expect_random_access(self._address, self._span_bytes)
        self.copier = best_copier()
        self._batched = True

    @property
    def span(self) -> tuple[int, int]:
        """Address and length in bytes of the range of all files, both whole pages."""
        return self._address, self._span_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that a full preload needs."""
        return self._span_bytes

    @property
    def joint(self) -> Joint:
        """What gathers from mapped files of any dataset by one call."""
        return gather_mapped

    def _resident_count(self, extents: Extents) -> int:
        for count, (first, size) in enumerate(whole_pages(ranges_of(extents)).tolist()):
            if not syscalls.residency(first, size).all():
                return count
        return extents.file.size

    def read_ahead(self, extents: Extents) -> None:
        """Make the kernel start to read extents."""
        self._start_reading(whole_pages(ranges_of(extents)))

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard, read without the map: the page table entries of a terabyte
        take 2 GiB.
        """
        return self.shards[shard].read(first_byte, size_bytes)

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard out of the map."""
        first = int(self._firsts[shard] + self.first_bytes[shard]) + first_byte
        firsts = np.arange(first, first + size_bytes, _READ_BYTES, dtype=np.uint64)
        ranges = _between(firsts, first + size_bytes)
        self._start_reading(whole_pages(ranges))
        content = np.empty(size_bytes, dtype=np.uint8)
        # In small parts: the copier may need as much memory again as a part.
        for place, part in zip(range(0, size_bytes, _READ_BYTES), ranges, strict=True):
            target = content[place : place + _READ_BYTES]
            self.with_retries(partial(self._copy, shard, part, target))
        self.require_intact()
        return content.tobytes()

    def bring_in(self) -> Iterator[int]:
        """Preload all of it, and enter it into the page table; yields as `Bytes.bring_in`.

        Raises: CorpusChanged; OSError if a file was truncated; Unreadable.
        """
        address, span_bytes = self.span
        requested_bytes = 0
        for first in range(0, span_bytes, PIECE_BYTES):
            self.require_intact()
            end = min(first + PIECE_BYTES, span_bytes)
            ahead_bytes = min(end + _PIECES_AHEAD * PIECE_BYTES, span_bytes)
            firsts = np.arange(
                address + requested_bytes, address + ahead_bytes, _READ_BYTES, dtype=np.uint64
            )
            self._start_reading(_between(firsts, address + ahead_bytes))
            requested_bytes = ahead_bytes
            self.with_retries(partial(self._populate, first, end))
            yield end

    def close(self) -> None:
        """Unmap the files. A gather in progress fails with CorpusChanged."""
        super().close()
        self.copier.close()
        with self._sentinel_lock:  # no file is exchanged now, nor later
            if self._span_bytes:
                syscalls.unmap(self._address, self._span_bytes)
                self._span_bytes = 0

    def _put(self, index: int, file: LocalFile) -> None:
        # The kernel exchanges the pages at once: a gather has the ones or the others.
        address, size_bytes = int(self._firsts[index]), self.shards[index].size_bytes
        syscalls.map_file(address, file.descriptor, size_bytes)
        syscalls.expect_random_access(address, _pages_bytes(size_bytes))

    def _read(self, extents: Extents, target: ByteArray) -> None:
        faults_before = major_faults()
        unread = _copied(self.copier, extents, target)
        self.readahead.observe(major_faults() - faults_before)
        if unread is not None:
            raise FailedRead(int(extents.file[unread]) - self.first_file, _bad_address())

    def _read_bytes(self, shard: Numbers, first_byte: Numbers) -> ByteArray:
        found = np.empty(shard.size, dtype=np.uint8)
        unread = self.copier.copy(
            byte_ranges(self._firsts[shard] + self.first_bytes[shard] + first_byte, 1), found
        )
        if unread is not None:
            raise FailedRead(int(shard[unread]), _bad_address())
        return found

    def _copy(self, shard: int, part: npt.NDArray[np.uint64], target: ByteArray) -> None:
        if self.copier.copy(part.reshape(1, 2), target) is not None:
            raise FailedRead(shard, _bad_address())

    def _populate(self, first_byte: int, end_byte: int) -> None:
        """Enter a part of the range into the page table.

        Raises: FailedRead; OSError if a file was truncated, on which the next check or gather acts.
        """
        address = self._address + first_byte
        try:
            if not syscalls.populate(address, end_byte - first_byte):
                self._touch(address, end_byte - first_byte)
        except OSError as error:
            for shard in self._shards_within(address, address + end_byte - first_byte):
                if self.was_cut(FailedRead(shard, error)):
                    raise
            raise FailedRead(shard, error) from error

    def _touch(self, address: int, size_bytes: int) -> None:
        """Copy a byte of every page, for kernels that cannot populate.  Raises: OSError."""
        pages = np.arange(address, address + size_bytes, syscalls.PAGE_BYTES, dtype=np.uint64)
        ranges = np.stack([pages, np.ones_like(pages)], axis=1)
        if self.copier.copy(ranges, np.empty(pages.size, dtype=np.uint8)) is not None:
            raise _bad_address()

    def _shards_within(self, first_address: int, end_address: int) -> range:
        """Return the indices of the files in a part of the range, at least one."""
        first = int(np.searchsorted(self._firsts, first_address, side="right")) - 1
        return range(first, int(np.searchsorted(self._firsts, end_address, side="left")))

    def _start_reading(self, ranges: syscalls.Ranges) -> None:
        """Make the kernel start to read ranges; does not wait."""
        if not len(ranges):
            return
        self._batched = self._batched and syscalls.read_ahead(ranges)
        if not self._batched:
            syscalls.read_ahead_singly(ranges)


def _map(path: str, read_layout: ReadLayout, address: int, span_bytes: int) -> Shard:
    with open_local_file(path) as file:
        shard = Shard.describe(file, read_layout)
        if _pages_bytes(shard.size_bytes) != span_bytes:
            raise InvalidCorpus(
                path, "changed while it was being opened; start again when it is complete"
            )
        try:
            syscalls.map_file(address, file.descriptor, shard.size_bytes)
        except OSError as error:
            option = READ.to("pread")
            cure = f"raise vm.max_map_count (65530 files by default), or pass {option}"
            problem = f"cannot be mapped: {error.strerror}; {cure}"
            raise InvalidCorpus(path, problem, option) from error
        return shard


def gather_mapped(extents: Extents, target: ByteArray) -> int | None:
    """Write extents of mapped files of any dataset into memory; a `Joint`."""
    copier, faults_before = _common_copier(), major_faults()
    if _copied(copier, extents, target) is not None:
        return None
    waits = major_faults() - faults_before
    suspects = suspect_files(extents, target)
    return waits if not suspects.size or _have_sentinels(copier, suspects) else None


@functools.cache
def _common_copier() -> Copier:
    return best_copier()


# A fork has files in memory of its own: in one that it shares, others would write their rows.
os.register_at_fork(after_in_child=_common_copier.cache_clear)


def _copied(copier: Copier, extents: Extents, target: ByteArray) -> int | None:
    """Copy extents into target, and zeros into its gaps.

    Returns: the index of the first extent that could not be read, None if all could.
    """
    ranges = ranges_of(extents)
    if extents.at is None:
        return copier.copy(ranges, target)
    before, _, sizes = extents.gaps(target.size)
    zeros = np.zeros(int(sizes.max(initial=0)), dtype=np.uint8)
    gaps = byte_ranges(np.full(sizes.size, zeros.ctypes.data), sizes)
    unread = copier.copy(np.insert(ranges, before, gaps, axis=0), target)
    if unread is None:
        return None
    # Where the gaps are among them.
    return unread - int(np.searchsorted(before + np.arange(before.size), unread))


def _have_sentinels(copier: Copier, files: Numbers) -> bool:
    known, found = FILES.columns, np.empty(files.size, dtype=np.uint8)
    expected = known.sentinel_values[files]
    ranges = byte_ranges(known.addresses[files] + known.sentinel_bytes[files], 1)
    unread = copier.copy(ranges, found)
    return unread is None and bool(expected.all()) and np.array_equal(found, expected)


def ranges_of(extents: Extents) -> syscalls.Ranges:
    """Return where extents are in memory, uint64[n, 2]: address and length in bytes."""
    addresses = FILES.columns.addresses[extents.file]
    return byte_ranges(addresses + extents.first_byte, extents.size_bytes)


def byte_ranges(addresses: Numbers, size_bytes: Numbers | int) -> syscalls.Ranges:
    """Return ranges of memory, uint64[n, 2]: address and length in bytes."""
    ranges = np.empty((addresses.size, 2), dtype=np.uint64)
    ranges[:, 0] = addresses
    ranges[:, 1] = size_bytes
    return ranges


def _between(firsts: npt.NDArray[np.uint64], end: int) -> syscalls.Ranges:
    """Return the ranges from each address to the next, and from the last one to end."""
    return np.stack([firsts, np.diff(firsts, append=np.uint64(end))], axis=1)


def whole_pages(ranges: syscalls.Ranges) -> syscalls.Ranges:
    """Return the ranges, extended to whole pages."""
    page_bytes = np.uint64(syscalls.PAGE_BYTES)
    first = ranges[:, 0] // page_bytes * page_bytes
    end = -(-(ranges[:, 0] + ranges[:, 1]) // page_bytes) * page_bytes
    return np.stack([first, end - first], axis=1)


def _pages_bytes(size_bytes: int) -> int:
    return -(-size_bytes // syscalls.PAGE_BYTES) * syscalls.PAGE_BYTES


def major_faults() -> int:
    """Return how many page faults of this thread had to wait for a disk so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _bad_address() -> OSError:
    return OSError(errno.EFAULT, os.strerror(errno.EFAULT))
