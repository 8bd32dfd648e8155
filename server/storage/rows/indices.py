"""The row indices of a dataset: found, or made, in the background when they are first asked for.

A kept file is checked there too: up to 1 GiB of it is read, which may take longer than a request
waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, LimitExceeded, TokenfeedError, Unreadable
from tokenfeed.sampling.document_rows import RowsKey

from ...runtime.exceptions import log_exception
from ...runtime.process.memory_limit import available_bytes
from ..borders import Borders, BorderSearch
from ..store import TokenStore
from .kept import what_of
from .making import RowsJob
from .reading import CONTEXT_LENGTH_END, RowIndex

_LOG = logging.getLogger("tokenfeed.server")

DOCUMENTS_MAX = 10**8
"""From here on, rows are made by a command. Fewer take a server a minute or so: 0.24 to 0.76 s for
10^6 documents; see server/pack.py."""
INDICES_MAX = 16
"""Opened at once, so that requests for any context length do not fill the disk."""
_READ_SECONDS, _DESCRIBED_SECONDS = 900.0, 60.0
"""An index makes room for another one this long after rows were read of it, or it was only
described. A client that has prefetched rows asks for more after minutes."""
MEMORY_SHARE = 0.5
"""Of the memory that is available, how much the making of rows may take in a process that has other
work too."""
_NICENESS = 10
"""Streams have priority when processors are short, as over a search for borders."""
_WAIT_SECONDS = 1.0
"""A request waits for rows until they have been made for this long, which is enough for a million
documents."""
_FAILED_SECONDS = 300.0
"""After a failure, which may be that of a disk that is full. Then the next request tries again."""
_REFUSED_SECONDS = 10.0
"""After a refusal, since a command may make what was not there. Longer than a client takes to ask
again, which may not have waited for the answer."""
_REMEMBERED_MAX = 1024
"""Keys that were refused, or failed."""
_CLOSE_SECONDS = 0.5


class RowIndices:
    """The row indices of a dataset. All methods may be called from several threads at once."""

    def __init__(
        self,
        store: TokenStore,
        borders: Borders | BorderSearch | None,
        delimiter: int | None,
        cache_dir: str | None,
        fingerprint: bytes,
        pack_options: Sequence[str] = (),
    ) -> None:
        """Open nothing yet; the arguments are as for RowsJob.

        borders: None if nothing is known of documents.  pack_options: words that `tokenfeed pack`
        needs for these files.
        """
        self._store = store
        self._borders = borders
        self._delimiter = delimiter
        self._cache_dir = cache_dir
        self._fingerprint = fingerprint
        self._pack_options = pack_options
        self._lock = threading.Lock()  # guards what follows; the opened ones are read without it
        self._opened: dict[RowsKey, RowIndex] = {}
        self._needed_until: dict[RowsKey, float] = {}
        self._remembered: dict[RowsKey, _Remembered] = {}
        self._making: _Making | None = None
        self._stopping = threading.Event()
        self._is_closed = False

    def get(self, key: RowsKey, *, is_read: bool = True) -> RowIndex:
        """Return an index. If it is not opened, a thread begins to find or to make it, which this
        waits for, but not for long.

        is_read: whether rows are read of it, or it is only described.
        Raises: InvalidRequest if there cannot be one, with the reason; Unreadable, with the
        progress or the failure, until it is there.
        """
        index = self._opened.get(key)
        if index is not None:
            self._keep_for(key, _READ_SECONDS if is_read else _DESCRIBED_SECONDS)
            return index
        with self._lock:
            making = self._begun(key)
        if making is not None:
            making.wait()
        with self._lock:
            index = self._opened.get(key)
            if index is not None:
                return index
            if making is not None and making.error is not None:
                raise _again(making.error)
            raise self._not_yet(key)

    def find(self, key: RowsKey) -> RowIndex | float | None:
        """Return an index if it is opened; otherwise the share of the work that is done, in
        [0, 1): a search for borders counts as half of it. Begins nothing.

        Returns: the progress of other rows while these wait for them; None if `get` would raise
        something else, it says what.
        """
        with self._lock:
            index = self._opened.get(key)
            if index is not None:
                return index
            is_refused = self._refusal(key) is not None
            is_failed = isinstance(self._borders, BorderSearch) and self._borders.has_failed
            return None if is_refused or is_failed else self._progress()

    def found_now(self, key: RowsKey) -> RowIndex | None:
        """Return an index that is opened, or found in this thread; None if it has to be made.

        Raises: TokenfeedError.
        """
        with self._lock:
            index = self._opened.get(key)
            if index is not None:
                return index
            self._require_room()
        index = self.job(key).found()
        return None if index is None else self._kept_open(key, index)

    def make_now(self, key: RowsKey, stopped: Callable[[], bool] = lambda: False) -> RowIndex:
        """Return an index, found or made in this thread; of any number of documents.

        stopped: as for RowsJob.made.  Raises: TokenfeedError.
        """
        index = self.found_now(key)
        if index is not None:
            return index
        job = self.job(key)
        self._require_memory(job)
        index = job.made(lambda: self._stopping.is_set() or stopped())
        return self._kept_open(key, index)

    def job(self, key: RowsKey) -> RowsJob:
        """Return what finds or makes an index.

        Raises: InvalidRequest if there cannot be one; Unreadable during a search for borders.
        """
        self._require_possible(key)
        borders = self._borders
        if isinstance(borders, BorderSearch):
            borders = borders.require_done()
        assert borders is not None
        return RowsJob(
            self._store, borders, self._delimiter, self._cache_dir, self._fingerprint, key
        )

    @property
    def making(self) -> tuple[RowsKey, float] | None:
        """What is being made, and the share of it that is done; None if nothing is."""
        making = self._making
        return None if making is None else (making.key, making.progress)

    def stop(self) -> None:
        """End a making in progress, which leaves nothing; what was opened can still be read. May be
        called twice.
        """
        self._stopping.set()
        making = self._making
        if making is not None:
            making.end()

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk, and close all. May be called
        twice.
        """
        self.stop()
        with self._lock:
            self._is_closed = True
            for index in self._opened.values():
                index.close()

    def _begun(self, key: RowsKey) -> _Making | None:
        """Return the making of this key, begun now if there is none; None if it is opened, or waits
        for another one.

        Raises: InvalidRequest, Unreadable.
        """
        if key in self._opened:
            return None
        if (refusal := self._refusal(key)) is not None:
            raise refusal
        if isinstance(self._borders, BorderSearch):
            self._borders.require_done()
        if self._making is None:
            self._making = making = _Making(key, self._make)
            making.start()
        return self._making if self._making.key == key else None

    def _refusal(self, key: RowsKey) -> TokenfeedError | None:
        """Return why nothing is begun for a key; None if nothing is known against it."""
        try:
            self._require_possible(key)
            if self._making is None or self._making.key != key:
                self._require_room()
        except InvalidRequest as error:
            return error
        if self._stopping.is_set():
            problem = f"has no {what_of(key)}, and its server stops; retry later, or on another"
            return Unreadable("dataset", f"{self._store.name!r} {problem} server")
        known = self._remembered.get(key)
        if known is None or time.monotonic() >= known.end:
            return None
        return _again(known.error)

    def _require_possible(self, key: RowsKey) -> None:
        """Raise InvalidRequest if there can be no such rows."""
        if self._borders is None:
            problem = f"{key.order} needs to know where documents begin"
            cure = f"which is unknown for {self._store.name!r}; pass --document-end-token"
            unknown = [shard for shard in self._store.shards if shard.layout.documents is None]
            if 0 < len(unknown) < len(self._store.shards):
                name = os.path.basename(unknown[0].path)
                cure = f"which {len(unknown)} file(s) of {self._store.name!r} do not say, first "
                cure += f"{name}; restore their indices of documents"
            raise InvalidRequest("order", f"{problem}, {cure}")
        if not 1 <= key.context_length < CONTEXT_LENGTH_END:
            problem = f"{key.context_length} is not in [1, {CONTEXT_LENGTH_END})"
            raise InvalidRequest("context_length", f"{problem}, the range of {key.order}")

    def _require_room(self) -> None:
        """Raise LimitExceeded if too many are opened, and none of them is idle."""
        if len(self._opened) < INDICES_MAX:
            return
        if self._idle() is None:
            problem = f"{self._store.name!r} has rows for {INDICES_MAX} context lengths and orders"
            cure = "the most at once; use one of them, retry when one was not read for "
            cure += f"{_READ_SECONDS / 60:.0f} minutes, or on another server"
            raise LimitExceeded("context_length", f"{problem}, {cure}")

    def _keep_for(self, key: RowsKey, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._needed_until[key] = max(end, self._needed_until.get(key, end))

    def _idle(self) -> RowsKey | None:
        """Return the index that is idle for longest; None if none is."""
        found = min(self._opened, key=self._needed_until.__getitem__)
        return found if self._needed_until[found] < time.monotonic() else None

    def _require_few_documents(self, job: RowsJob) -> None:
        """Raise InvalidRequest if a server does not make these rows."""
        count = job.borders.count
        if count >= DOCUMENTS_MAX:
            problem = f"{self._store.name!r} has {count} documents, and no {what_of(job.key)} yet"
            raise InvalidRequest("order", f"{problem}; run: {self._command(job.key)}")
        self._require_memory(job)

    def _require_memory(self, job: RowsJob) -> None:
        """Raise InvalidRequest if rows do not fit into memory while they are made: this process
        would be killed, and have done nothing but that once it is started again.
        """
        try:
            available = int(MEMORY_SHARE * available_bytes())
        except OSError:
            return
        if job.memory_bytes > available:
            problem = (
                f"{self._store.name!r} has no {what_of(job.key)} yet, and making them takes "
                f"{job.memory_bytes / 1e9:.1f} GB of memory, of which {available / 1e9:.1f} GB are "
                "for that here"
            )
            cure = f"use smaller files, or a machine with more memory and: {self._command(job.key)}"
            raise InvalidRequest("order", f"{problem}; {cure}")

    def _command(self, key: RowsKey) -> str:
        """Return the command that makes rows."""
        command = f"tokenfeed pack DATA --context-length {key.context_length}"
        command += f" --order {key.order.partition('-')[0]} --long {key.long_documents}"
        return " ".join((command, *self._pack_options))

    def _make(self, making: _Making) -> None:
        """Find or make an index, in the thread of its making."""
        key = making.key
        try:
            job = self.job(key)
            index = job.found()
            if index is None:
                self._require_few_documents(job)
                index = job.made(self._stopping.is_set, making.take_progress)
            self._kept_open(key, index)
        except Unreadable as error:
            # Nothing is wrong with the documents: the next request tries it again.
            _LOG.warning("%s not made dataset=%s: %s", what_of(key), self._store.name, error)
            making.error = error
        except InvalidRequest as error:
            self._remember(making, error, _REFUSED_SECONDS)
        except TokenfeedError as error:
            if not self._stopping.is_set():
                _LOG.error("%s not made dataset=%s: %s", what_of(key), self._store.name, error)
            self._remember(making, self._failure(key), _FAILED_SECONDS)
        except Exception:  # noqa: BLE001 - other orders are served without
            log_exception(logging.ERROR, "%s not made dataset=%s", what_of(key), self._store.name)
            self._remember(making, self._failure(key), _FAILED_SECONDS)
        finally:
            with self._lock:
                self._making = None

    def _remember(self, making: _Making, error: TokenfeedError, seconds: float) -> None:
        """Keep the error of a making, for those who wait for it and for later requests."""
        with self._lock:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[making.key] = _Remembered(error, time.monotonic() + seconds)
        making.error = error

    def _kept_open(self, key: RowsKey, index: RowIndex) -> RowIndex:
        """Keep an index open, unless another one of its key is."""
        with self._lock:
            if key not in self._opened and len(self._opened) >= INDICES_MAX:
                # None if one was read meanwhile: then there is one more for a while.
                if (idle := self._idle()) is not None:
                    self._opened.pop(idle).close()
                    del self._needed_until[idle]
            self._keep_for(key, _DESCRIBED_SECONDS)
            kept = self._opened.setdefault(key, index)
            if kept is not index or self._is_closed:
                index.close()
            return kept

    def _progress(self) -> float:
        """Return the share of the work that is done, in [0, 1): of the making in progress."""
        share = self._making.progress if self._making is not None else 0.0
        if isinstance(self._borders, BorderSearch):
            share = (self._borders.progress + share) / 2
        return min(share, 0.999)

    def _not_yet(self, key: RowsKey) -> Unreadable:
        """Return that an index is not there yet."""
        making, done = self._making, f"{100 * self._progress():.1f} % are done"
        if making is not None and making.key != key:
            problem = f"no {what_of(key)} yet: they wait for {what_of(making.key)}, of which {done}"
        else:
            problem = f"{what_of(key)} that are still being made; {done}"
        cure = "retry later, or on another server"
        return Unreadable("dataset", f"{self._store.name!r} has {problem}; {cure}")

    def _failure(self, key: RowsKey) -> Unreadable:
        problem = f"has no {what_of(key)}: making them failed"
        cure = f"the log of its server says why; it tries again after {_FAILED_SECONDS:.0f} s"
        return Unreadable("dataset", f"{self._store.name!r} {problem}; {cure}")


class _Remembered(NamedTuple):
    """An error that requests are answered with.  end: until when, of time.monotonic()."""

    error: TokenfeedError
    end: float


def _again(error: TokenfeedError) -> TokenfeedError:
    """Return the same error, to be raised in another thread."""
    return type(error)(error.subject, error.problem)


class _Making:
    """A thread that finds or makes an index.

    progress: share of the documents that are done.  error: once it has ended without an index.
    """

    def __init__(self, key: RowsKey, make: Callable[[_Making], None]) -> None:
        """Start nothing yet."""
        self.key = key
        self.progress = 0.0
        self.error: TokenfeedError | None = None
        self._make = make
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-rows", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def take_progress(self, share: float) -> None:
        """Keep the share."""
        self.progress = share

    def wait(self) -> None:
        """Wait until it has ended, at most for _WAIT_SECONDS since it began."""
        self._thread.join(max(0.0, self._began + _WAIT_SECONDS - time.monotonic()))

    def end(self) -> None:
        """Wait until the thread has ended, but not for a slow disk."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        os.nice(_NICENESS)  # of this thread alone, on Linux
        self._make(self)
