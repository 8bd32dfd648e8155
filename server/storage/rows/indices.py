"""The row indices of a dataset: opened when they are first asked for, and made in the background if
there is none.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from tokenfeed.errors import InvalidRequest, LimitExceeded, TokenfeedError, Unreadable
from tokenfeed.sampling.document_rows import RowsKey

from ...runtime.exceptions import log_exception
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
_NICENESS = 10
"""Streams have priority when processors are short, as over a search for borders."""
_WAIT_SECONDS = 1.0
"""A request waits for rows until they have been made for this long, which is enough for a million
documents."""
_LOOK_SECONDS = 5.0
"""Between two looks for a file that was not there."""
_REMEMBERED_MAX = 1024
"""Keys that were looked for, or failed."""
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
    ) -> None:
        """Open nothing yet; the arguments are as for RowsJob.

        borders: None if nothing is known of documents.
        """
        self._store = store
        self._borders = borders
        self._delimiter = delimiter
        self._cache_dir = cache_dir
        self._fingerprint = fingerprint
        self._lock = threading.Lock()  # guards what follows; the opened ones are read without it
        self._opened: dict[RowsKey, RowIndex] = {}
        self._looked_at: dict[RowsKey, float] = {}
        self._failed: set[RowsKey] = set()
        self._making: _Making | None = None
        self._stopping = threading.Event()
        self._is_closed = False

    def get(self, key: RowsKey) -> RowIndex:
        """Return an index. If there is none, a thread begins to make it, which this waits for, but
        not for long.

        Raises: InvalidRequest if there cannot be one, with the reason; Unreadable, with the
        progress or the failure, until it is made.
        """
        index = self._opened.get(key)
        if index is not None:
            return index
        with self._lock:
            index = self._found(key)
            if index is not None:
                return index
            self._require_few_documents(key)
            making = self._begun(key)
        making.wait()
        with self._lock:
            index = self._opened.get(key)
            if index is None:
                raise self._unusable(key)
            return index

    def find(self, key: RowsKey) -> RowIndex | float | None:
        """Return an index if it can be had at once; otherwise the share of the work that is done,
        in [0, 1): a search for borders counts as half of it. Makes nothing.

        Returns: None if `get` would raise something else; it says what.
        """
        index = self._opened.get(key)
        if index is not None:
            return index
        with self._lock:
            try:
                index = self._found(key)
                if index is None:
                    self._require_few_documents(key)
            except InvalidRequest:
                return None
            except Unreadable:
                return None if key in self._failed else self._progress(key)
            return self._progress(key) if index is None else index

    def make_now(
        self,
        key: RowsKey,
        stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> RowIndex:
        """Return an index, made in this thread if there is none; of any number of documents.

        stopped, on_progress: as for RowsJob.made.  Raises: TokenfeedError.
        """
        with self._lock:
            index = self._found(key)
        if index is not None:
            return index
        made = self.job(key).made(lambda: self._stopping.is_set() or stopped(), on_progress)
        return self._kept_open(key, made)

    def job(self, key: RowsKey) -> RowsJob:
        """Return what finds or makes an index, for a command.

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

    def _found(self, key: RowsKey) -> RowIndex | None:
        """Return one that is opened, or found on disk; None if it has to be made.

        Raises: InvalidRequest, Unreadable; LimitExceeded if too many are opened.
        """
        index = self._opened.get(key)
        if index is not None:
            return index
        self._require_possible(key)
        if isinstance(self._borders, BorderSearch):
            self._borders.require_done()
        if key in self._failed or self._stopping.is_set() or self._is_being_made(key):
            raise self._unusable(key)
        if len(self._opened) >= INDICES_MAX:
            problem = f"{self._store.name!r} has rows for {INDICES_MAX} context lengths and orders"
            cure = "the most at once; use one of them, or another server"
            raise LimitExceeded("context_length", f"{problem}, {cure}")
        now = time.monotonic()
        if now - self._looked_at.get(key, -_LOOK_SECONDS) < _LOOK_SECONDS:
            return None
        index = self.job(key).found()
        if index is not None:
            self._opened[key] = index
        else:
            if len(self._looked_at) >= _REMEMBERED_MAX:
                self._looked_at.clear()
            self._looked_at[key] = now
        return index

    def _require_possible(self, key: RowsKey) -> None:
        """Raise InvalidRequest if there can be no such rows."""
        if self._borders is None:
            problem = f"{key.order} needs to know where documents begin"
            cure = f"which is unknown for {self._store.name!r}; pass --document-end-token"
            raise InvalidRequest("order", f"{problem}, {cure}")
        if not 1 <= key.context_length < CONTEXT_LENGTH_END:
            problem = f"{key.context_length} is not in [1, {CONTEXT_LENGTH_END})"
            raise InvalidRequest("context_length", f"{problem}, the range of {key.order}")

    def _require_few_documents(self, key: RowsKey) -> None:
        """Raise InvalidRequest if a server does not make these rows."""
        count = self._borders.count if self._borders is not None else 0
        if count >= DOCUMENTS_MAX:
            command = f"tokenfeed pack DATA --context-length {key.context_length}"
            command += f" --order {key.order.partition('-')[0]} --long {key.long_documents}"
            problem = f"{self._store.name!r} has {count} documents, and no {what_of(key)} yet"
            raise InvalidRequest("order", f"{problem}; run: {command}")

    def _is_being_made(self, key: RowsKey) -> bool:
        making = self._making
        return making is not None and making.key == key and not making.is_young

    def _begun(self, key: RowsKey) -> _Making:
        """Return the making of this key, begun now if there is none.

        Raises: Unreadable if another one is made.
        """
        if self._making is not None:
            if self._making.key != key:
                raise self._unusable(key)
            return self._making
        self._making = making = _Making(key, self._make)
        making.start()
        return making

    def _make(self, making: _Making) -> None:
        """Make an index, in the thread of its making."""
        key = making.key
        try:
            index = self.job(key).made(self._stopping.is_set, making.take_progress)
            self._kept_open(key, index)
        except Unreadable as error:
            # Nothing is wrong with the documents: the next request tries it again.
            _LOG.warning("%s not made dataset=%s: %s", what_of(key), self._store.name, error)
        except TokenfeedError as error:
            if not self._stopping.is_set():
                _LOG.error("%s not made dataset=%s: %s", what_of(key), self._store.name, error)
            self._remember_failure(key)
        except Exception:  # noqa: BLE001 - other orders are served without
            log_exception(logging.ERROR, "%s not made dataset=%s", what_of(key), self._store.name)
            self._remember_failure(key)
        finally:
            with self._lock:
                self._making = None

    def _remember_failure(self, key: RowsKey) -> None:
        with self._lock:
            if len(self._failed) >= _REMEMBERED_MAX:
                self._failed.clear()
            self._failed.add(key)

    def _kept_open(self, key: RowsKey, index: RowIndex) -> RowIndex:
        """Keep an index open, unless another one of its key is."""
        with self._lock:
            kept = self._opened.setdefault(key, index)
            if kept is not index or self._is_closed:
                index.close()
            return kept

    def _progress(self, key: RowsKey) -> float:
        """Return the share of the work that is done, in [0, 1)."""
        making = self._making
        share = making.progress if making is not None and making.key == key else 0.0
        if isinstance(self._borders, BorderSearch):
            share = (self._borders.progress + share) / 2
        return min(share, 0.999)

    def _unusable(self, key: RowsKey) -> Unreadable:
        """Return why an index cannot be had now."""
        cure = "retry later, or on another server"
        making = self._making
        if key in self._failed:
            problem = f"has no {what_of(key)}: making them failed"
            cure = "the log of its server says why"
        elif self._stopping.is_set():
            problem = f"has no {what_of(key)}, and its server stops"
        elif making is not None and making.key != key:
            done = f"of which {100 * making.progress:.1f} % are done"
            problem = f"has no {what_of(key)} yet: they wait for {what_of(making.key)}, {done}"
        else:
            share = 0.0 if making is None else making.progress
            problem = f"has {what_of(key)} that are still being made; {100 * share:.1f} % are done"
        return Unreadable("dataset", f"{self._store.name!r} {problem}; {cure}")


class _Making:
    """A thread that makes an index.

    progress: share of the documents that are done.
    """

    def __init__(self, key: RowsKey, make: Callable[[_Making], None]) -> None:
        """Start nothing yet."""
        self.key = key
        self.progress = 0.0
        self._make = make
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-rows", daemon=True)

    @property
    def is_young(self) -> bool:
        """Whether a request may wait for it."""
        return time.monotonic() - self._began < _WAIT_SECONDS

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
