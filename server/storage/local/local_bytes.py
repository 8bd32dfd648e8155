"""The common part of the bytes of local files: the detection of files that were truncated within an
extent.

Half a corpus is another corpus: once a file was found truncated or written to, the dataset delivers
nothing more.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ...runtime.exceptions import log_safe_name
from ...runtime.threads.poll_rate import PollRate
from ..bytes import ByteArray, Extents, Joint, Numbers, ReadCounts
from ..exchanges import EXCHANGES
from .file_changes import FailedRead, WatchedShards
from .file_table import FILES, Columns
from .files import LocalFile
from .readahead import ReadAhead
from .shard import Shard


class LocalBytes(WatchedShards, ABC):
    """The bytes of a dataset's files on file systems of this machine: `Bytes` without the
    reading.
    """

    kind: str

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        poll_rate: PollRate | None,
        *,
        status_of: Callable[[int], os.stat_result] | None = None,
        addresses: Numbers | None = None,
    ) -> None:
        """Take opened shards.

        status_of: as in WatchedShards.  addresses: int64[files], where they are mapped, if they
        are.
        """
        super().__init__(name, shards, poll_rate or PollRate(), status_of)
        self.first_bytes = np.array([shard.layout.first_byte for shard in shards], dtype=np.int64)
        sentinel_bytes = np.array([shard.tail.sentinel_byte for shard in shards], dtype=np.int64)
        values = np.array([shard.tail.sentinel_value for shard in shards], dtype=np.uint8)
        firsts = np.zeros_like(sentinel_bytes) if addresses is None else addresses
        self._numbers = FILES.add(
            Columns(firsts + self.first_bytes, sentinel_bytes - self.first_bytes, values)
        )
        self.first_file = self._numbers.first
        self._sentinel_lock = threading.RLock()  # a file that is opened may be exchanged
        self.readahead = ReadAhead(self)

    @abstractmethod
    def _read(self, extents: Extents, target: ByteArray) -> None:
        """Read extents into target, and zeros into its gaps.  Raises: FailedRead."""

    @abstractmethod
    def _read_bytes(self, shard: Numbers, first_byte: Numbers) -> ByteArray:
        """Read one byte of each of some files, uint8[files], counted from the first token.

        Raises: FailedRead.
        """

    @abstractmethod
    def _resident_count(self, extents: Extents) -> int:
        """Return how many extents are in memory, from the first one on."""

    def seem_resident(self, extents: Extents) -> bool:
        """Return whether a sample of these bytes is in memory."""
        sample = extents.sample()
        return self._resident_count(sample) == sample.file.size

    def ready_count(self, extents: Extents) -> int | None:
        """Return None: a disk that is asked ahead answers before it would be worth a smaller frame.

        Cold windows of 2,049 tokens, thousands a second: 48 with whole frames, 37 with those of the
        rows that are in memory. 2 cores, 2026-11; benchmarks/cold_read.py.
        """
        return None

    @abstractmethod
    def read_ahead(self, extents: Extents) -> None:
        """Start to read bytes that will be needed soon."""

    @property
    def joint(self) -> Joint | None:
        """What gathers from several datasets by one call: only maps can."""
        return None

    def gather(self, extents: Extents, target: ByteArray, patient: bool = True) -> None:
        """Write extents into memory, with retries, and check that they are whole."""
        self.require_intact()
        self.with_retries(lambda: self._read_checked(extents, target), patient)
        # Again: if this was closed meanwhile, other data may have been read.
        self.require_intact()

    def advise(self, extents: Extents, due_seconds: float = 0.0) -> None:
        """Start to read what will be gathered soon, if it seems cold: at once."""
        self.readahead.advise(extents)

    holds_groups = False

    def require_room(self, extents: Extents) -> None:
        """Raise nothing: nothing is held."""

    def hold(self, owner: object, present: Extents, following: Extents) -> None:
        """Do nothing: the kernel reads ahead what is advised."""

    def observe(self, waits: int) -> None:
        """Record how often a gather had to wait for storage."""
        self.readahead.observe(waits)

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk or the network."""
        return self.readahead.cold

    @property
    def read_counts(self) -> ReadCounts:
        """What was read since the start."""
        return ReadCounts(self.readahead.cold_reads, self.readahead.advised_bytes)

    def close(self) -> None:
        """Deliver nothing more. A gather in progress fails with CorpusChanged."""
        super().close()
        FILES.remove(self._numbers)

    def _read_checked(self, extents: Extents, target: ByteArray) -> None:
        """Like `gather`, once.  Raises: FailedRead; CorpusChanged if a file was truncated."""
        try:
            self._read(extents, target)
            suspects = suspect_files(extents, target)
            if suspects.size:
                self._require_sentinels(suspects)
        except FailedRead:
            self.readahead.observe(1)
            raise

    def _require_sentinels(self, suspects: Numbers) -> None:
        """Fail the dataset if one of these files was truncated.  Raises: FailedRead, CorpusChanged.

        The sentinel of a file is its last byte that is not 0. A truncation before it removes it or
        makes it 0; a truncation behind it removes only zeros. A stat call for every file of every
        frame would cost a third of a frame.
        """
        known = FILES.columns
        shards = suspects - self.first_file
        values = known.sentinel_values[suspects]
        found = self._read_bytes(shards, known.sentinel_bytes[suspects])
        wrong = shards[found != values].tolist()
        # If a file ends in nothing but zeros, only its stat can tell.
        for index in shards[values == 0].tolist() if self.may_change else ():
            # A file of zeros needs no look: what is cut off, or grown again, is zeros too.
            if self.shards[index].tail.first_byte and self.is_written(index):
                wrong.append(index)
        if wrong and self._are_wrong_still(wrong):
            self.require_intact()
            name = log_safe_name(self.shards[wrong[0]].path)
            self.mark_failed(f"{name}: truncated, found by a gather")
            self.require_intact()

    def _are_wrong_still(self, shards: list[int]) -> bool:
        """Compare the sentinels of files again, while none of them is exchanged."""
        with self._sentinel_lock:
            files = self.first_file + np.array(shards)
            while True:
                known = FILES.columns
                found = self._read_bytes(np.array(shards), known.sentinel_bytes[files])
                if FILES.columns is known:  # a read may open a file again, and exchange it
                    break
            return any(
                value != expected or (not value and self.is_written(index))
                for index, value, expected in zip(
                    shards, found.tolist(), known.sentinel_values[files].tolist(), strict=True
                )
            )

    def _exchange(self, index: int, file: LocalFile, shard: Shard) -> None:
        """Read from another file of the same size from now on."""
        tail = shard.tail
        # A gather that meets the new file and the old sentinel waits for the new one.
        with self._sentinel_lock:
            if self._closed.is_set():
                return  # its addresses may be those of others
            # Before: rows that were gathered meanwhile may need tokens that are erased.
            EXCHANGES.add()
            self._put(index, file)
            self.shards[index] = shard
            byte = tail.sentinel_byte - int(self.first_bytes[index])
            FILES.set_sentinel(self._numbers, index, byte, tail.sentinel_value)

    @abstractmethod
    def _put(self, index: int, file: LocalFile) -> None:
        """Read from another file.  Raises: OSError."""


def suspect_files(extents: Extents, content: ByteArray) -> Numbers:
    """Return the files with an extent that may go beyond a truncation.  content: as it was read.

    If a mapped file is truncated within a page, the rest of that page reads as zeros, without an
    error. So does a hole, if the file grows again. Then the last byte of the extent is 0 too, if
    the file system removes the pages beyond the new end before it clears the rest of the last page,
    as ext4 and tmpfs do (docs/decisions/0003-gather.md lists those that do not).
    """
    # Nearly always none or a few: numpy takes several times as long to sort them.
    return np.array(
        sorted(set(extents.file[extents.last_bytes(content) == 0].tolist())), dtype=np.int64
    )
