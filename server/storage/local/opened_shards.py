"""The opened files of a store: what has become of them since, and which errors heal.

Files are looked at one at a time, in turns that all datasets share (looks.py). And whoever cannot
read a part of one asks here: it was cut short if its size or its time say so; else a file system
has failed over, or forgot what it had cached, and trying again soon may help.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tokenfeed.errors import CorpusChanged, Unreadable

from ...runtime.exceptions import log_safe_name
from ...runtime.poll_rate import PollRate
from ..store import SameContent, Submit
from .shard import FileChange, FileStat, Shard

Result = TypeVar("Result")

_LOG = logging.getLogger("tokenfeed.server")
_CHANGED = "changed while it was served; restart its server on complete files"
_PAUSES_SECONDS = (0.02, 0.1, 0.3, 0.5)
"""Between tries to read what could not be read: not a second in all, since a call waits for it."""
_SAID_SECONDS = 30.0
_REREAD_PAUSE = 10
"""How many times as long as reading a dataset anew took is paused before the next time: `chmod -R`
touches one file after the other, and each would cause it.
"""


class Unread(Exception):
    """A part of a shard could not be read.  shard: its index.  error: why."""

    def __init__(self, shard: int, error: OSError) -> None:
        """Keep both."""
        super().__init__(shard, error)
        self.shard = shard
        self.error = error


class OpenedShards:
    """The files of a dataset, as they were opened.

    Its few values are changed by many threads without a lock: at worst a file is read anew twice.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        poll_rate: PollRate,
        status_of: Callable[[int], os.stat_result] | None = None,
    ) -> None:
        """Begin with none changed.

        status_of: returns what the file system says of an opened file; without it, that of its
        path is asked for.
        """
        self.name = name
        self.shards = list(shards)
        self._poll_rate = poll_rate
        self._status_of = status_of
        self._failed = ""
        self._closed = threading.Event()
        self._warned: set[int] = set()
        self._unknown: set[int] = set()
        self._touched: set[int] = set()
        self._rereading = False
        self._reread_at = 0.0
        self._said_at = -_SAID_SECONDS

    @property
    def failed(self) -> bool:
        """Whether nothing of them is handed out any more."""
        return bool(self._failed)

    @property
    def may_change(self) -> bool:
        """Whether to look for changes while nothing is wrong with them."""
        return not self._poll_rate.never

    def require_intact(self) -> None:
        """Raise CorpusChanged if a file was ever found cut short or written to."""
        if self._failed:
            raise CorpusChanged("dataset", f"{self.name!r} {self._failed}")

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        """Hand out nothing more of this dataset: half a corpus is another corpus.

        reason: for the log.  told: to clients, where it is not that its files changed.
        """
        self._failed = client_message or _CHANGED
        _LOG.error("lost dataset=%s: %s", self.name, reason)

    def close(self) -> None:
        """Hand out nothing more. May be called twice."""
        self._failed = _CHANGED
        self._closed.set()

    def is_written(self, index: int) -> bool:
        """Say whether a file was cut short or written to, by its size and time as they are now.

        Raises: Unread where the file system does not tell.
        """
        return self._current_change(index) is FileChange.MODIFIED

    def further_sentinel(self, index: int) -> tuple[int, int] | None:
        """Return what `Shard.further_sentinel` does, if the file is as it was opened; else None."""
        shard = self.shards[index]
        try:
            found = shard.further_sentinel()
            self._poll_rate.wait_turn()
            return found if shard.current_stat() == shard.facts else None
        except OSError:
            return None

    def surely(self, read: Callable[[], Result], patient: bool = True) -> Result:
        """Return what `read` returns, which is called for about a second as long as it raises
        Unread; once if not patient, and then it is not asked why: what was cut is Unreadable too.

        Raises: CorpusChanged if a file was cut short or written to, or cannot be read to the end
        and has lost its name, without which nobody can tell; else Unreadable at the end.
        """
        for pause_seconds in _PAUSES_SECONDS if patient else ():
            try:
                return read()
            except Unread as unread:
                if self.was_cut(unread):
                    name = log_safe_name(self.shards[unread.shard].path)
                    error = unread.error.strerror
                    self.mark_failed(f"{name}: cut short or written to; met by a read: {error}")
            self.require_intact()
            self._closed.wait(pause_seconds)
        try:
            return read()
        except Unread as unread:
            if patient and self._is_gone(unread.shard):
                name = log_safe_name(self.shards[unread.shard].path)
                self.mark_failed(f"{name}: replaced or removed, and what was opened cannot be read")
                self.require_intact()
            problem = "has a file that cannot be read at present"
            cure = "ask again, or another server; the log of this one names the file"
            raise Unreadable("dataset", f"{self.name!r} {problem}; {cure}") from unread.error

    def was_cut(self, unread: Unread) -> bool:
        """Say whether what could not be read was cut off or written to, as far as the file system
        tells; otherwise the log has a line, once in a while.
        """
        self.require_intact()
        try:
            if self._current_change(unread.shard) is FileChange.MODIFIED:
                return True
        except Unread as submit:
            unread = submit
        if time.monotonic() - self._said_at >= _SAID_SECONDS:
            self._said_at = time.monotonic()
            _LOG.warning(
                "cannot be read dataset=%s file=%s: %s; tried again, and it is served on",
                self.name,
                log_safe_name(self.shards[unread.shard].path),
                unread.error.strerror,
            )
        return False

    def poll_file(self, index: int, same_content: SameContent, submit: Submit) -> None:
        """Look at a file: one written to in place loses the dataset, others cost a warning.

        same_content: reads the dataset anew.  later: calls what it is given, which calls that.
        """
        if self._failed:
            return
        self._poll_rate.wait_turn()
        shard = self.shards[index]
        try:
            now = shard.current_stat()
            change = shard.detect_change(now)
        except OSError as error:
            self._say_unknown(index, error)
            return
        self._unknown.discard(index)
        if change is FileChange.MODIFIED:
            self.mark_failed(f"{log_safe_name(shard.path)}: {change.value}")
        if change in (FileChange.REPLACED, FileChange.APPENDED) and index not in self._warned:
            self._warned.add(index)
            _LOG.warning(
                "file dataset=%s name=%s: %s", self.name, log_safe_name(shard.path), change.value
            )
        if change in (FileChange.METADATA, FileChange.APPENDED) and now is not None:
            # As it is now: what is written while it is read is seen the next time.
            self.shards[index] = shard.with_stat(now)
            self._touched.add(index)
        due = time.monotonic() >= self._reread_at
        if self._touched and due and not self._failed and not self._rereading:
            self._rereading = True
            submit(partial(self._reread, same_content))

    def facts(self) -> list[FileStat]:
        """Return what is known of each file."""
        return [shard.facts for shard in self.shards]

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Say whether all files are now as these facts say."""
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
        """Lose the dataset unless its content is the same; what cannot be read now is read again
        after another look.
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
                self.mark_failed(f"{names}: written to in place, whatever its time says")
        finally:
            ended = time.monotonic()
            self._reread_at = ended + _REREAD_PAUSE * (ended - began)
            self._rereading = False

    def _is_gone(self, index: int) -> bool:
        """Say whether nothing leads to what was opened any more: no descriptor, not its name."""
        try:
            return self._status_of is None and self._current_change(index) is FileChange.REPLACED
        except Unread:
            return False

    def _current_change(self, index: int) -> FileChange:
        """Say what has become of what was opened: by its descriptor, if one is kept, or its name.

        Raises: Unread where the file system does not tell.
        """
        self._poll_rate.wait_turn()
        shard = self.shards[index]
        try:
            if self._status_of is None:
                return shard.detect_change(shard.current_stat())
            return shard.detect_change(FileStat.of(self._status_of(index)))
        except OSError as error:
            raise Unread(index, error) from error

    def _say_unknown(self, index: int, error: OSError) -> None:
        """Say once that the file system does not tell, until all of them can be looked at again."""
        if not self._unknown:
            _LOG.warning(
                "could not look at dataset=%s file=%s: %s; it is served on",
                self.name,
                log_safe_name(self.shards[index].path),
                error.strerror,
            )
        self._unknown.add(index)
