"""Polls what may change while the server runs, in separate threads, each at most once a second.

A gather notices data that it cannot read. Only the file system knows whether a file was written to
while it was served, and asking it for every frame would cost more than the gather.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from ..exceptions import log_exception
from .poll_rate import POLL_SECONDS

_CLOSE_SECONDS = 0.5


class Poller:
    """A thread that calls some checks in turn until it is closed."""

    def __init__(
        self, polls: Mapping[str, Callable[[], None]], pause_seconds: float = POLL_SECONDS
    ) -> None:
        """Start polling.

        polls: the checks, by their names in the log.  pause_seconds: before each round of checks.
        """
        self._polls = polls
        self._pause_seconds = pause_seconds
        self._failed: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk. May be called twice."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(self._pause_seconds):
            for name, poll in self._polls.items():
                self._poll(name, poll)

    def _poll(self, name: str, poll: Callable[[], None]) -> None:
        try:
            poll()
            self._failed.discard(name)
        except Exception:  # noqa: BLE001 - the other checks must still run
            if name not in self._failed:
                self._failed.add(name)
                log_exception(logging.ERROR, "check failed name=%s", name)


class RescanWorker:
    """A thread that rereads files after a poll found a change. This takes seconds, so polls do not
    wait for it.
    """

    def __init__(self) -> None:
        """Start the thread, with nothing to read."""
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-rescan", daemon=True)
        self._thread.start()

    def submit(self, read: Callable[[], None]) -> None:
        """Run a read after those submitted before it."""
        self._queue.put(read)

    def closed(self) -> bool:
        """Whether to stop reading."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk. May be called twice."""
        self._closed.set()
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (read := self._queue.get()) and not self.closed():
            _read(read)


def _read(read: Callable[[], None]) -> None:
    try:
        read()
    except Exception:  # noqa: BLE001 - the next read must still run
        log_exception(logging.ERROR, "rescan failed")
