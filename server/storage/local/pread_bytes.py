"""The files of one dataset, read by pread: for network file systems.

There a map's page tables, single page faults and SIGBUS cost more than a system call per row. The
descriptor of each file stays open, so the opened file is served even after its name has changed;
unless there are more files than descriptors. Then files are opened as they are read.
Rows in memory are read by the calling thread; other rows, by many threads at once.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...runtime.threads.poll_rate import PollRate
from ...runtime.threads.worker_threads import WorkerThreads
from ..bytes import PIECE_BYTES, ByteArray, Extents, Numbers
from ..door import ReadLayout
from .descriptors import Descriptors, descriptors_for
from .files import LocalFile, open_descriptor, open_local_file
from .shard import FileChange, FileStat, Shard
from .watched_bytes import FailedRead, WatchedBytes

# Thousand rows a second where each read takes 1 ms and nothing is cached: 1.0 with one thread, 9
# with 16, 14 with 32, 20 with 64. 2 cores, 2026-11; docs/decisions/0014-stores.md
_READERS = 32
_PIECES_AHEAD = 4
_ROW_SECONDS_WARM = 100e-6
_BYTES_PER_SECOND_WARM = 500e6
"""If a file system does not report what is in memory, a gather that took longer was cold."""
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
_NO_FLAGS = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM)
"""From file systems, old kernels and system call filters that do not support RWF_NOWAIT."""


class _Part(NamedTuple):
    """Bytes of a file that are still to be read, and their target."""

    shard: int
    first_byte: int
    target: memoryview


class _Share:
    """What one thread reads: the first one that gets to it. Later ones read nothing."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read: Callable[[], None] | None = read
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def read(self, *, waits: bool = False) -> Exception | None:
        """Read it, unless another thread has. If one is reading it: wait for the end, or return.

        Returns: the error of the read.
        """
        if self._lock.acquire(blocking=waits):
            try:
                if self._read is not None:
                    self._read()
            except Exception as error:  # noqa: BLE001 - raised by the calling thread
                self._error = error
            finally:
                # Not kept: it refers to the target, and this may wait in a queue for long.
                self._read = None
                self._lock.release()
        return self._error


class PreadBytes(WatchedBytes):
    """A dataset's files as open descriptors; `Bytes`."""

    kind = "pread"

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        read_layout: ReadLayout,
        poll_rate: PollRate | None,
        *,
        open_max: int | None = None,
    ) -> None:
        """Open every file.

        name: of the dataset.  read_layout: reads the layout of each.  open_max: how many stay open;
        None: as many as the limit of descriptors allows.
        Raises: InvalidCorpus, naming the file and the problem.
        """
        self._files = (
            descriptors_for(name, paths, self._open_again)
            if open_max is None
            else Descriptors(open_max, self._open_again)
        )
        shards = []
        try:
            for path in paths:
                with open_local_file(path) as file:
                    shards.append(Shard.describe(file, read_layout))
                    self._files.add(file.descriptor)
            # A file that is not open can only be asked for its status by its path.
            status_of = self._status if self._files.all_open else None
            super().__init__(name, shards, poll_rate, status_of=status_of)
        except BaseException:
            self._files.close()
            raise
        # RWF_NOWAIT reports nothing about the time that it takes to open a file.
        self._has_nowait = bool(_NO_WAIT) and self._files.all_open
        self._seemed_warm = False
        self._readers = WorkerThreads(_READERS)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that a full preload needs."""
        return sum(shard.size_bytes for shard in self.shards)

    def seem_resident(self, extents: Extents) -> bool:
        """Return whether a sample of extents is in memory. If the file system does not report that:
        whether the last gather was fast.
        """
        return super().seem_resident(extents) if self._has_nowait else self._seemed_warm

    def _resident_count(self, extents: Extents) -> int:
        byte = bytearray(1)
        for count, (shard, first, size) in enumerate(self._places(extents)):
            for place in (first, first + size - 1):
                if not self._is_resident(shard, place, byte):
                    return count
        return extents.file.size

    def _is_resident(self, shard: int, place: int, byte: bytearray) -> bool:
        try:
            return self._files.call(os.preadv, shard, (byte,), place, _NO_WAIT) == 1
        except OSError:
            return False

    def read_ahead(self, extents: Extents) -> None:
        """Make the kernel start to read extents."""
        places = self._places(extents)
        if self._files.all_open:
            self._start_reading_each(places)
            return
        # To open a file may wait, which this must not do.
        for first in range(min(_READERS, len(places))):
            self._readers.submit(partial(self._start_reading_each, places[first::_READERS]))

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard.  Raises: InvalidCorpus."""
        content = bytearray(size_bytes)
        part = _Part(shard, int(self.first_bytes[shard]) + first_byte, memoryview(content))
        known = self.shards[shard]
        try:
            known.require_same(self._status(shard))
            self._read_part(part)
        except (OSError, FailedRead) as error:
            why = error.error if isinstance(error, FailedRead) else error
            raise InvalidCorpus(known.path, f"cannot be read: {why.strerror}") from why
        return bytes(content)

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard.  Raises: CorpusChanged, Unreadable."""
        content = bytearray(size_bytes)
        part = _Part(shard, int(self.first_bytes[shard]) + first_byte, memoryview(content))
        self.with_retries(partial(self._read_part, part))
        self.require_intact()
        return bytes(content)

    def bring_in(self) -> Iterator[int]:
        """Read all of it, in order.  Raises: CorpusChanged, Unreadable."""
        content = memoryview(bytearray(PIECE_BYTES))
        done_bytes = 0
        for index, shard in enumerate(self.shards):
            first = shard.layout.first_byte
            end = first + shard.layout.content_bytes
            file_end_bytes = done_bytes + shard.size_bytes
            done_bytes += first
            for place in range(first, end, PIECE_BYTES):
                self.require_intact()
                self._start_reading(index, place + PIECE_BYTES, _PIECES_AHEAD * PIECE_BYTES)
                piece = content[: min(PIECE_BYTES, end - place)]
                self.with_retries(partial(self._read_part, _Part(index, place, piece)))
                self.require_intact()
                done_bytes += len(piece)
                yield done_bytes
            if done_bytes < file_end_bytes:
                # Bytes behind the tokens are never needed.
                done_bytes = file_end_bytes
                yield done_bytes

    def close(self) -> None:
        """Close the files. A gather in progress fails with CorpusChanged."""
        super().close()
        self._readers.close()
        self._files.close()

    def _read(self, extents: Extents, target: ByteArray) -> None:
        """Read extents: first those in memory, by this thread; then the others, by many threads."""
        began = time.perf_counter()
        everything = target.data
        _, firsts, sizes = extents.gaps(target.size)
        for first, size in zip(firsts.tolist(), sizes.tolist(), strict=True):
            target[first : first + size] = 0
        flags = _NO_WAIT if self._has_nowait else 0
        left: list[_Part] = []
        descriptors, preadv = self._files.for_preadv()
        together = not flags and self.readahead.cold
        places = self._places(extents)
        for (shard, first, size), end in zip(places, extents.ends.tolist(), strict=True):
            part = everything[end - size : end]
            done = 0
            if not together:
                try:
                    done = preadv(descriptors[shard], (part,), first, flags)
                except BlockingIOError:
                    pass
                except OSError as error:
                    if not (flags and error.errno in _NO_FLAGS):
                        raise self._unread(shard, error) from error
                    self._has_nowait, flags = False, 0
            if done != size:
                left.append(_Part(shard, first + done, part[done:]))
        if left:
            self._read_parts(left)
        self._observe(time.perf_counter() - began, len(places), extents.total_bytes, len(left))

    def _observe(self, seconds: float, extents: int, size_bytes: int, waits: int) -> None:
        if not self._has_nowait:
            allowed = extents * _ROW_SECONDS_WARM + size_bytes / _BYTES_PER_SECOND_WARM
            self._seemed_warm = seconds <= allowed
            waits = int(not self._seemed_warm)
        self.readahead.observe(waits)

    def _read_bytes(self, shard: Numbers, first_byte: Numbers) -> ByteArray:
        found = np.empty(shard.size, dtype=np.uint8)
        firsts = (first_byte + self.first_bytes[shard]).tolist()
        for at, (file, first) in enumerate(zip(shard.tolist(), firsts, strict=True)):
            self._read_part(_Part(file, first, found.data[at : at + 1]))
        return found

    def _read_parts(self, parts: Sequence[_Part]) -> None:
        """Read many parts at once.  Raises: FailedRead."""
        shares = [
            _Share(partial(self._read_each, parts[first::_READERS]))
            for first in range(min(_READERS, len(parts)))
        ]
        for share in shares[1:]:
            self._readers.submit(share.read)
        # This thread reads what no other has begun. All have to finish before the target is used.
        for error in [share.read(waits=True) for share in shares]:
            if error is not None:
                raise error

    def _read_each(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            self._read_part(part)

    def _read_part(self, part: _Part) -> None:
        """Read until all is there.  Raises: FailedRead."""
        shard, first_byte, target = part
        while target:
            try:
                done = self._files.call(os.preadv, shard, (target,), first_byte)
            except OSError as error:
                raise self._unread(shard, error) from error
            if not done:
                raise FailedRead(shard, OSError(errno.ENODATA, "the file ends before this range"))
            first_byte, target = first_byte + done, target[done:]

    def _unread(self, shard: int, error: OSError) -> FailedRead:
        """Return the exception for a failed read; reopens the file if its handle is stale."""
        if error.errno == errno.ESTALE:
            self._reopen(shard)
        return FailedRead(shard, error)

    def _reopen(self, shard: int) -> None:
        """Replace a stale handle by a new one of the same file."""
        known = self.shards[shard]
        try:
            with open_local_file(known.place) as file:
                now = FileStat.of(file.status)
                # Not the device number, which a failover may change.
                if now[1:4] == known.facts[1:4] and not self.failed:
                    self._files.replace(shard, file.descriptor)
                    # Keep the old ctime: the next check then causes a reread if it differs.
                    facts = known.facts._replace(device=now.device)
                    self.shards[shard] = known.with_stat(facts)
                    return
            self._may_reload(shard)
        except (InvalidCorpus, OSError):
            return

    def _open_again(self, shard: int) -> int:
        """Open a file that was closed, and return the descriptor.

        Raises: OSError; ESTALE if it is another file by now, or was truncated or written to.
        """
        descriptor = open_descriptor(self.shards[shard].place)
        try:
            change = self.shards[shard].detect_change(FileStat.of(os.fstat(descriptor)))
            if change is FileChange.REPLACED and self._may_reload(shard):
                change = self.shards[shard].detect_change(FileStat.of(os.fstat(descriptor)))
            if change in (FileChange.REPLACED, FileChange.MODIFIED):
                raise OSError(errno.ESTALE, "changed since it was opened")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _put(self, index: int, file: LocalFile) -> None:
        self._files.replace(index, file.descriptor)

    def _status(self, shard: int) -> os.stat_result:
        return self._files.call(os.fstat, shard)

    def _places(self, extents: Extents) -> list[tuple[int, int, int]]:
        """Return the file, the first byte and the size of each extent."""
        shards = extents.file - self.first_file
        firsts = extents.first_byte + self.first_bytes[shards]
        places = shards.tolist(), firsts.tolist(), extents.sizes.tolist()
        return list(zip(*places, strict=True))

    def _start_reading_each(self, places: Sequence[tuple[int, int, int]]) -> None:
        for place in places:
            self._start_reading(*place)

    def _start_reading(self, shard: int, first_byte: int, size_bytes: int) -> None:
        advice = (first_byte, size_bytes, os.POSIX_FADV_WILLNEED)
        try:
            self._files.call(os.posix_fadvise, shard, *advice)
        except OSError:
            return  # only advice: a read will report the error
