"""A search for delimiters in the background, while the tokens are served.

All tokens of a corpus above 1 GiB have to be read, which may take an hour. Until then the plane has
no fingerprint, and a request for it is answered with the progress.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from tokenfeed.errors import TokenfeedError, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.wire.row_block import Plane

from ...runtime.exceptions import log_exception
from .reading import Borders

_LOG = logging.getLogger("tokenfeed.server")

_NICENESS = 10
"""Streams have priority when processors are short, as over a warm-up."""
_CLOSE_SECONDS = 0.5

Search = Callable[[Callable[[], bool], Callable[[float], None]], Borders]
"""Searches. It is given a function that returns whether to stop, and one that takes the progress.
Raises: TokenfeedError."""


class BorderSearch:
    """The plane of document starts of a dataset that is still being searched. It becomes usable by
    itself; all methods may be called from several threads at once.
    """

    kind = DOCUMENT_STARTS
    cold = False

    def __init__(self, name: str, search: Search) -> None:
        """Start nothing yet.  name: of the dataset."""
        self._name = name
        self._search = search
        self._progress = 0.0
        self._problem = ""
        self._borders: Borders | None = None
        self._closing = threading.Lock()  # guards the borders while this is closed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-documents", daemon=True)

    @property
    def progress(self) -> float:
        """Share of the tokens that were searched, in [0, 1]; 1 exactly once it can be read."""
        return 1.0 if self._borders is not None else min(self._progress, 0.999)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without borders."""
        return bool(self._problem)

    @property
    def fingerprint(self) -> bytes:
        """That of the plane, 32 bytes; b"" until it is known."""
        return b"" if self._borders is None else self._borders.fingerprint

    @property
    def count(self) -> int:
        """Entries of the plane; 0 until it is known."""
        return 0 if self._borders is None else self._borders.count

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def search_now(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Search in this thread instead.  stopped: whether to stop, which raises InvalidCorpus.

        Raises: TokenfeedError.
        """
        borders = self._search(lambda: self._closed.is_set() or stopped(), self._take_progress)
        with self._closing:
            self._borders = borders
            if self._closed.is_set():
                borders.close()

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Like `Borders.read`; raises Unreadable until the search is done."""
        return self.require_done().read(spans, patient)

    def require_done(self) -> Borders:
        """Return what was found.  Raises: Unreadable, with the progress or the failure."""
        if self._borders is not None:
            return self._borders
        if self._problem:
            problem = "has no document borders: the search for them failed"
            cure = "the log of its server says why"
        else:
            done = f"{100 * self._progress:.1f} % are done"
            problem = f"is still being searched for document borders; {done}"
            cure = "retry later, or on another server"
        raise Unreadable("dataset", f"{self._name!r} {problem}; {cure}")

    def advise(self, spans: Spans) -> None:
        """Do nothing, like `Borders.advise`."""

    def stop(self) -> None:
        """End a search that is not done, which removes its incomplete file. Borders that were found
        can still be read. May be called twice.
        """
        with self._closing:
            if self._borders is None:
                self._closed.set()
        self._await_thread()

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk. May be called twice."""
        self._closed.set()
        self._await_thread()
        with self._closing:
            if self._borders is not None:
                self._borders.close()

    def _await_thread(self) -> None:
        """Wait until the thread has ended, but not for a slow disk."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            self.search_now()
        except TokenfeedError as error:
            self._problem = str(error)
            if not self._closed.is_set():
                _LOG.error("document search failed dataset=%s: %s", self._name, error)
        except Exception:  # noqa: BLE001 - the tokens are served without
            self._problem = "unknown"
            log_exception(logging.ERROR, "document search failed dataset=%s", self._name)

    def _take_progress(self, share: float) -> None:
        self._progress = share
