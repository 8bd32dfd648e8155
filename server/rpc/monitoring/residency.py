"""Which share of a dataset's pages is in memory, of a sample of them: for the status.

It is measured only while a client asks, in a thread of its own: a file system that hangs must not
stop the status. The files are asked by a read that does not wait (RWF_NOWAIT). mincore would say
that all is in memory of files that this process may not write.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping

import numpy as np

from ...datasets.dataset import Dataset
from ...runtime.threads.poller import Poller

_PAUSE_SECONDS = 2.0
_WANTED_SECONDS = 30.0
"""It is measured for this long after a call of `share`."""
_SAMPLES = 128
"""Pages that are looked at, of each dataset: 0.5 ms if they are in memory. A share of 0.5 is then
off by 0.04 or so."""


class Residency:
    """The shares of some datasets. Network file systems are not asked."""

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        """Start the thread, which does nothing until `share` is called."""
        self._datasets = datasets
        self._shares: dict[str, float | None] = {}
        self._asked_at = -_WANTED_SECONDS
        self._poller = Poller({"residency": self._measure}, _PAUSE_SECONDS)

    def share(self, dataset: str) -> float | None:
        """Return a share in [0, 1], a few seconds old; None if it is not known (yet)."""
        self._asked_at = time.monotonic()
        return self._shares.get(dataset)

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._poller.close()

    def _measure(self) -> None:
        if time.monotonic() - self._asked_at > _WANTED_SECONDS:
            self._shares = {}
            return
        self._shares = {
            name: resident_share(dataset)
            for name, dataset in self._datasets.items()
            if dataset.store.files.kind == "map"
        }


def resident_share(dataset: Dataset) -> float | None:
    """Return the share of a sample of pages that is in memory; None if it cannot be told."""
    shards = dataset.store.shards
    sizes = dataset.store.shape.token_counts * dataset.store.stored.itemsize
    ends = np.cumsum(sizes)
    places = (np.arange(_SAMPLES) * 2 + 1) * int(ends[-1]) // (2 * _SAMPLES)
    found = []
    for index in np.unique(files := np.searchsorted(ends, places, side="right")).tolist():
        first = shards[index].layout.first_byte - int(ends[index] - sizes[index])
        found += _in_memory(shards[index].path, [first + int(p) for p in places[files == index]])
    known = [each for each in found if each is not None]
    return sum(known) / len(known) if known else None


def _in_memory(path: str, places: list[int]) -> list[bool | None]:
    """Return for each byte of a file whether it is in memory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return [None] * len(places)
    try:
        return [_is_in_memory(descriptor, place) for place in places]
    finally:
        os.close(descriptor)


def _is_in_memory(descriptor: int, place: int) -> bool | None:
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1 or None
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
