"""The making of an index in the background, while the tokens are served.

It may read all tokens of a corpus, or pack its documents, which takes up to an hour. A request that
needs the index is answered with the progress meanwhile, and with the failure afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tokenfeed.errors import InvalidRequest, TokenfeedError, Unreadable

from ...runtime.exceptions import log_exception

_LOG = logging.getLogger("tokenfeed.server")

_NICENESS = 10
"""Streams have priority when processors are short, as over a warm-up."""
_CLOSE_SECONDS = 0.5

Stopped = Callable[[], bool]
"""Returns whether to stop."""
OnProgress = Callable[[float], None]
"""Takes the share of the work that is done, in [0, 1]."""


class Closeable(Protocol):
    """What is closed once it is not needed any more."""

    def close(self) -> None:
        """Release everything. May be called twice."""


Result = TypeVar("Result", bound=Closeable)


def never() -> bool:
    """Return False: a Stopped of what is never stopped."""
    return False


class Build(Generic[Result]):
    """Makes an index, in a thread of low priority or in that of its caller. All methods may be
    called from several threads at once.

    progress: share of the work that is done, in [0, 1]; 1 exactly once it is there.  result: None
    until it is there.  error: why the thread has ended without it; None if it has not.  ended_at:
    when, of time.monotonic().
    """

    def __init__(
        self, failure: str, name: str, make: Callable[[Stopped, OnProgress], Result]
    ) -> None:
        """Start nothing yet.

        failure: what to log if it fails, such as "document search failed".  name: of the dataset.
        make: makes the index.  Raises: TokenfeedError, also when it is stopped.
        """
        self.progress = 0.0
        self.result: Result | None = None
        self.error: Exception | None = None
        self.began_at = self.ended_at = 0.0
        self._failure = failure
        self._name = name
        self._make = make
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # so that a result that comes after the end is closed
        self._thread = threading.Thread(target=self._run, name="tokenfeed-index", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self.began_at > 0 and self.result is None and self.error is None

    def start(self) -> None:
        """Start the thread, unless it is there; once."""
        if self.result is None:
            self.began_at = time.monotonic()
            try:
                self._thread.start()
            except RuntimeError as error:  # no more threads can start
                problem = f"has no index of its documents yet: {error}"
                self._fail(Unreadable("dataset", f"{self._name!r} {problem}; retry later"))

    def run(self, stopped: Stopped = never) -> Result:
        """Make the index in this thread instead.  Raises: what `make` raises."""
        return self.take(self._make(lambda: self._stopped.is_set() or stopped(), self._advance))

    def take(self, result: Result) -> Result:
        """Take an index that was found.  Raises: Unreadable if this was stopped."""
        with self._lock:
            if not self._stopped.is_set():
                self.result, self.progress = result, 1.0
                return result
        result.close()
        problem = "was closed while an index of its documents was made"
        raise Unreadable("dataset", f"{self._name!r} {problem}; retry later, or on another server")

    def wait(self, seconds: float) -> None:
        """Wait for the end of the thread, at most until some seconds after its start."""
        self._join(max(0.0, self.began_at + seconds - time.monotonic()))

    def stop(self) -> None:
        """End what is not done, which leaves no file; an index that is there can still be read. May
        be called twice.
        """
        with self._lock:
            if self.result is None:
                self._stopped.set()
        self._join(_CLOSE_SECONDS)

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk, and close the index. May be called
        twice.
        """
        self._stopped.set()
        self._join(_CLOSE_SECONDS)
        with self._lock:
            if self.result is not None:
                self.result.close()

    def _join(self, seconds: float) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            self.run()
        except TokenfeedError as error:
            if not (self._stopped.is_set() or isinstance(error, InvalidRequest)):
                # The next request tries again what cannot be read now.
                level = logging.WARNING if isinstance(error, Unreadable) else logging.ERROR
                _LOG.log(level, "%s dataset=%s: %s", self._failure, self._name, error)
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the tokens are served without
            log_exception(logging.ERROR, "%s dataset=%s", self._failure, self._name)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.ended_at = time.monotonic()
        self.error = error

    def _advance(self, share: float) -> None:
        self.progress = min(share, 0.999)
