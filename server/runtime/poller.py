"""Looks at what may change under a server, in threads of its own: at each thing once a second, at
most.

The gather notices what it cannot read. What can be read and is wrong all the same, since somebody
wrote into a file while it was served, only the file system knows; asking it for every frame would
cost more than the gather.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from .exceptions import log_exception
from .poll_rate import POLL_SECONDS

_CLOSE_SECONDS = 0.5


class Poller:
    """A thread that looks at some things in turn until it is closed."""

    def __init__(
        self, polls: Mapping[str, Callable[[], None]], pause_seconds: float = POLL_SECONDS
    ) -> None:
        """Begin to look.

        looks: by what the log calls what they look at.  pause_seconds: before each round of them.
        """
        self._polls = polls
        self._pause_seconds = pause_seconds
        self._failed: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, or leave it behind where a disk keeps it waiting. May be called twice."""
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
        except Exception:  # noqa: BLE001 - the others still have to be looked at
            if name not in self._failed:
                self._failed.add(name)
                log_exception(logging.ERROR, "could not look at %s", name)


class RescanWorker:
    """A thread that reads files anew where a look has found reason to, which takes seconds: no look
    has to wait for that.
    """

    def __init__(self) -> None:
        """Wait for something to read."""
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-reread", daemon=True)
        self._thread.start()

    def submit(self, read: Callable[[], None]) -> None:
        """Have something read once what came before is."""
        self._queue.put(read)

    def closed(self) -> bool:
        """Whether to stop reading."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the thread, or leave it behind where a disk keeps it waiting. May be called twice."""
        self._closed.set()
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (read := self._queue.get()) and not self.closed():
            _read(read)


def _read(read: Callable[[], None]) -> None:
    try:
        read()
    except Exception:  # noqa: BLE001 - the next still has to be read
        log_exception(logging.ERROR, "could not read anew")
