"""Looks at the files of every dataset once a second, in a thread of its own.

The gather notices what it cannot read. What can be read and is wrong all the same, since somebody
wrote into a file while it was served, only the file system knows; asking it for every frame would
cost more than the gather.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from .dataset import Dataset

_LOG = logging.getLogger("tokenfeed.server")

LOOK_SECONDS = 1.0


class Watch:
    """A thread that looks at datasets until it is closed."""

    def __init__(
        self, datasets: Iterable[Dataset], others: Iterable[Callable[[], None]] = ()
    ) -> None:
        """Begin to look.  others: what else looks at something then."""
        self._datasets = list(datasets)
        self._others = list(others)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            for dataset in self._datasets:
                _look(dataset)
            for look in self._others:
                look()


def _look(dataset: Dataset) -> None:
    try:
        dataset.look()
    except Exception:  # noqa: BLE001 - the others still have to be looked at
        _LOG.exception("could not look at dataset=%s", dataset.name)
