"""Several mapped datasets, gathered by one system call: a mixture of a hundred sources has two or
three rows of each in a frame, and a call for each source would take longer than the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.spans import Spans

from ..store import TokenStore
from .mapped_store import MapStore, byte_ranges, major_faults


class JointMap:
    """The maps of several stores whose tokens are served as they are stored, in one type."""

    def __init__(self, stores: Sequence[MapStore]) -> None:
        """stores: of each source."""
        self._stores = tuple(stores)
        self._copier = stores[0].copier
        self._token_bytes = stores[0].stored.itemsize
        # The files of a dataset are listed once, however many sources it is: a request of 64 KiB
        # may have thousands of them.
        self._distinct = list(dict.fromkeys(stores))
        file_counts = [len(store.shards) for store in self._distinct]
        first_files = np.cumsum([0, *file_counts[:-1]])
        place = {store: index for index, store in enumerate(self._distinct)}
        self._first_files = first_files[[place[store] for store in stores]]
        self._addresses = np.concatenate([store.token_addresses for store in self._distinct])
        self._learn_sentinels()

    @classmethod
    def of(cls, stores: Sequence[TokenStore]) -> JointMap | None:
        """Return the maps of stores; None if one of them is no map, or has to convert tokens."""
        maps = [
            store for store in stores if isinstance(store, MapStore) and store.narrowing.is_identity
        ]
        alike = len({store.stored for store in maps}) == 1
        return cls(maps) if alike and len(maps) == len(stores) else None

    def _has_failed(self) -> bool:
        return any([store.failed for store in self._distinct])  # noqa: C419 - a list is faster

    def gather(self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger]) -> bool:
        """Write the rows of windows into tokens, and return whether they can be delivered. If not,
        the reason is not examined: gather them again from each store.
        """
        target = tokens.reshape(-1).view(np.uint8)
        file = self._first_files[spans.source] + spans.shard
        row_bytes = spans.row_tokens * self._token_bytes
        addresses = self._addresses[file] + spans.token_offset * self._token_bytes
        faults_before = major_faults()
        if self._copier.copy(byte_ranges(addresses, row_bytes), target) is not None:
            return False
        if waits := major_faults() - faults_before:
            self._observe(spans, waits)
        # As in LocalStore: only rows that end with 0 may extend beyond a truncation.
        suspects = np.array(sorted(set(file[target[row_bytes - 1 :: row_bytes] == 0].tolist())))
        intact = not suspects.size or self._are_whole(suspects)
        # Last: if a store was closed meanwhile, other data may have been read.
        return intact and not self._has_failed()

    def _observe(self, spans: Spans, waits: int) -> None:
        """Record a gather that had to wait, for the stores whose rows are not in memory."""
        used = sorted(set(spans.source.tolist()))
        away = [
            index
            for index in used
            if not self._stores[index].seem_resident(
                spans.select(np.flatnonzero(spans.source == index))
            )
        ]
        for index in away or used:
            self._stores[index].readahead.observe(waits)

    def _are_whole(self, files: npt.NDArray[np.int64]) -> bool:
        """Return whether the sentinels of files are there."""
        if self._have_sentinels(files):
            return True
        self._learn_sentinels()  # one may have been found, or changed, since
        return self._have_sentinels(files)

    def _have_sentinels(self, files: npt.NDArray[np.int64]) -> bool:
        expected = self._sentinels[files]
        found = np.empty(files.size, dtype=np.uint8)
        ranges = byte_ranges(self._sentinel_addresses[files], 1)
        unread = self._copier.copy(ranges, found)
        return unread is None and bool(expected.all()) and np.array_equal(found, expected)

    def _learn_sentinels(self) -> None:
        """Take over address and value of the last byte of each file that is not 0."""
        sentinels = [store.sentinels for store in self._distinct]
        self._sentinel_addresses = np.concatenate([addresses for addresses, _ in sentinels])
        self._sentinels = np.concatenate([values for _, values in sentinels])
