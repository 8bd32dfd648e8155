"""Finds out that a file was truncated, replaced or written to while it is served, and retries reads
that fail: what mapped_bytes.py and pread_bytes.py have in common.

Half a corpus is another corpus: once a file was found truncated or written to, the dataset delivers
nothing more. A gather finds files that were truncated within an extent. Besides, files are checked
one at a time, at a rate that all datasets share (PollRate). After a failed read, the size and the
modification time decide: if one of them has changed, the file was truncated or written to.
Otherwise the file system may have failed over or lost its cache, and a retry may help.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable

from ...runtime.exceptions import log_safe_name
from ...runtime.threads.poll_rate import PollRate
from ..bytes import (
    CHANGED,
    ByteArray,
    Extents,
    IsErasedFile,
    Joint,
    Numbers,
    ReadCounts,
    SameContent,
    Submit,
)
from ..exchanges import EXCHANGES
from .file_table import FILES, Columns
from .files import LocalFile, open_local_file
from .readahead import ReadAhead
from .shard import FileChange, FileStat, Shard

Result = TypeVar("Result")

_LOG = logging.getLogger("tokenfeed.server")
_WAS_CHANGED = f"{CHANGED}; restart its server on complete files"
_PAUSES_SECONDS = (0.02, 0.1, 0.3, 0.5)
"""Between retries of a failed read: less than a second in total, since a call waits for them."""
_LOG_SECONDS = 30.0
_REREAD_PAUSE = 10
"""Pause after a reread, in multiples of its duration: `chmod -R` changes one file after the other,
and each of them would cause a reread.
"""


class FailedRead(Exception):
    """A part of a shard that could not be read.  shard: its index.  error: why."""

    def __init__(self, shard: int, error: OSError) -> None:
        """Keep both."""
        super().__init__(shard, error)
        self.shard = shard
        self.error = error


class WatchedBytes(ABC):
    """The bytes of a dataset's files on file systems of this machine: `Bytes` without the reading.

    Several threads change what is known of the files without a lock: at worst, files are reread
    twice.
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

        status_of: returns the stat of an opened file, by index; None: stat calls use its path.
        addresses: int64[files], where they are mapped, if they are.
        """
        self.name = name
        self.shards = list(shards)
        self._poll_rate = poll_rate or PollRate()
        self._status_of = status_of
        self._is_erased_file: IsErasedFile = lambda index, layout, file: False
        self._failed = ""
        self._closed = threading.Event()
        self._warned: set[int] = set()
        self._unknown: set[int] = set()
        self._touched: set[int] = set()
        self._rereading = False
        self._reread_at = 0.0
        self._logged_at = -_LOG_SECONDS
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

    def require_room(self, extents: Extents) -> None:  # noqa: B027 - right for both ways
        """Raise nothing: nothing is held."""

    def hold(  # noqa: B027 - likewise
        self, owner: object, present: Extents, following: Extents
    ) -> None:
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
        self._failed = _WAS_CHANGED
        self._closed.set()
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

    # --- changes ---

    @property
    def failed(self) -> bool:
        """Whether the dataset has failed: it delivers nothing more."""
        return bool(self._failed)

    @property
    def may_change(self) -> bool:
        """Whether to poll the files for changes."""
        return not self._poll_rate.never

    def require_intact(self) -> None:
        """Raise CorpusChanged if the dataset has failed."""
        if self._failed:
            raise CorpusChanged("dataset", f"{self.name!r} {self._failed}")

    def allow_replacement(self, is_erased_file: IsErasedFile) -> None:
        """Serve a file without its erased tokens in place of the opened one, once it is found."""
        self._is_erased_file = is_erased_file

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        """Fail this dataset: it delivers nothing more, since half a corpus is another corpus.

        reason: for the log.  client_message: for clients, if the reason is not a changed file.
        """
        self._failed = client_message or _WAS_CHANGED
        _LOG.error("dataset failed dataset=%s reason=%s", self.name, reason)

    def is_written(self, index: int) -> bool:
        """Return whether a file was truncated or written to, by its current size and time.

        Raises: FailedRead if they cannot be read.
        """
        return self._current_change(index) is FileChange.MODIFIED

    def with_retries(self, read: Callable[[], Result], patient: bool = True) -> Result:
        """Return the result of `read`, which is retried for about a second while it raises
        FailedRead. If not patient, it is called once, and the cause of a failure is not examined.

        Raises: CorpusChanged if a file was truncated or written to, or if it cannot be read after
        all retries and its name is gone, so that its size is unknown; otherwise Unreadable.
        """
        for pause_seconds in _PAUSES_SECONDS if patient else ():
            try:
                return read()
            except FailedRead as unread:
                if self.was_cut(unread):
                    name = log_safe_name(self.shards[unread.shard].path)
                    error = unread.error.strerror
                    self.mark_failed(f"{name}: truncated or written to, found by a read: {error}")
            self.require_intact()
            self._closed.wait(pause_seconds)
        try:
            return read()
        except FailedRead as unread:
            if patient and self._may_reload(unread.shard):
                return self.with_retries(read, patient=False)
            if patient and self._is_gone(unread.shard):
                name = log_safe_name(self.shards[unread.shard].path)
                self.mark_failed(f"{name}: replaced or removed, and the opened file cannot be read")
                self.require_intact()
            problem = "has a file that cannot be read at the moment"
            cure = "retry on this or another server; the log of this server names the file"
            raise Unreadable("dataset", f"{self.name!r} {problem}; {cure}") from unread.error

    def was_cut(self, unread: FailedRead) -> bool:
        """Return whether a read failed because the file was truncated or written to. Otherwise logs
        the failure, at most once in _LOG_SECONDS.
        """
        self.require_intact()
        try:
            if self._current_change(unread.shard) is FileChange.MODIFIED:
                return True
        except FailedRead as failed_stat:
            unread = failed_stat
        if time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            _LOG.warning(
                "read failed, retrying dataset=%s file=%s reason=%s",
                self.name,
                log_safe_name(self.shards[unread.shard].path),
                unread.error.strerror,
            )
        return False

    def poll_file(self, index: int, same_content: SameContent, submit: Submit) -> None:
        """Check a file: one that was written to in place fails the dataset; other changes are
        logged or cause a reread.

        same_content: rereads the dataset.  submit: is given a function that calls same_content.
        """
        if self._failed:
            return
        self._poll_rate.wait_turn()
        shard = self.shards[index]
        try:
            now = shard.current_stat()
            change = shard.detect_change(now)
            if change is FileChange.REPLACED and now is not None and self.reload(index):
                change = FileChange.ERASED
        except InvalidCorpus as error:
            self._log_failed_check(index, error.problem)
            return
        except OSError as error:
            self._log_failed_check(index, error.strerror)
            return
        self._unknown.discard(index)
        if change is FileChange.MODIFIED:
            self.mark_failed(f"{log_safe_name(shard.path)}: {change.value}")
        is_warning = change in (FileChange.REPLACED, FileChange.APPENDED)
        if change is FileChange.ERASED or (is_warning and index not in self._warned):
            level, name = logging.WARNING if is_warning else logging.INFO, log_safe_name(shard.path)
            _LOG.log(
                level, "file changed dataset=%s file=%s change=%s", self.name, name, change.value
            )
            if is_warning:
                self._warned.add(index)
            else:
                self._warned.discard(index)
        if change in (FileChange.METADATA, FileChange.APPENDED) and now is not None:
            # The current stat: a write during the reread is then seen by the next check.
            self.shards[index] = shard.with_stat(now)
            self._touched.add(index)
        due = time.monotonic() >= self._reread_at
        if self._touched and due and not self._failed and not self._rereading:
            self._rereading = True
            submit(partial(self._reread, same_content))

    @property
    def facts(self) -> list[FileStat]:
        """What is known of each file, to detect a change."""
        return [shard.facts for shard in self.shards]

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Return whether all files still match these facts."""
        for index, known in enumerate(facts):
            if self._failed or stopped():
                return False
            if not self.may_change:
                continue
            self._poll_rate.wait_turn()
            try:
                if self.shards[index].current_stat() != known:
                    return False
            except OSError:
                return False
        return not (self._failed or self._touched or self._rereading)

    def _reread(self, same_content: SameContent) -> None:
        """Fail the dataset unless its content is the same. If it cannot be read now, a later check
        causes another reread.
        """
        touched = sorted(self._touched)
        self._touched.difference_update(touched)
        began = time.monotonic()
        try:
            same = same_content()
            if same is None:
                self._touched.update(touched)
            elif not same and not self._failed:
                names = ", ".join(log_safe_name(self.shards[index].path) for index in touched)
                self.mark_failed(f"{names}: the content is not that of the start")
        finally:
            ended = time.monotonic()
            self._reread_at = ended + _REREAD_PAUSE * (ended - began)
            self._rereading = False

    def _is_gone(self, index: int) -> bool:
        """Return whether the opened file cannot be reached: no descriptor, and its name is gone."""
        try:
            return self._status_of is None and self._current_change(index) is FileChange.REPLACED
        except FailedRead:
            return False

    def _current_change(self, index: int) -> FileChange:
        """Return how an opened file has changed, by its descriptor if there is one, or its name.

        Raises: FailedRead if the stat call fails.
        """
        self._poll_rate.wait_turn()
        shard = self.shards[index]
        try:
            if self._status_of is None:
                return shard.detect_change(shard.current_stat())
            return shard.detect_change(FileStat.of(self._status_of(index)))
        except OSError as error:
            raise FailedRead(index, error) from error

    def reload(self, index: int) -> bool:
        """Serve the file in the place of an opened one if it is that without its erased tokens;
        return whether it is served.

        Raises: InvalidCorpus or OSError if it cannot be read.
        """
        known = self.shards[index]
        with open_local_file(known.place) as file:
            facts = FileStat.of(file.status)
            if facts == known.facts:
                return True  # another thread was faster
            if facts.size_bytes != known.size_bytes:
                return False
            if not self._is_erased_file(index, known.layout, file):
                return False
            self._exchange(index, file, known.replaced_by(file))
        return True

    def _may_reload(self, index: int) -> bool:
        """Return whether a file was found in the place of an opened one, and is served now."""
        facts = self.shards[index].facts
        try:
            return self.reload(index) and self.shards[index].facts != facts
        except (InvalidCorpus, OSError):
            return False

    def _log_failed_check(self, index: int, reason: str | None) -> None:
        """Log a failed stat call, once until all files can be checked again."""
        if not self._unknown:
            _LOG.warning(
                "check failed, still serving dataset=%s file=%s reason=%s",
                self.name,
                log_safe_name(self.shards[index].path),
                reason,
            )
        self._unknown.add(index)


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
