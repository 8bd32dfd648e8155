"""RowDataset: the rows of an epoch by their index, for frameworks that bring a sampler.

Knows nothing of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from operator import index as as_index
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.stream.position import require_range
from tokenfeed.wire.request import ROWS_MAX

from ..device.host_transfer import Pair
from .delivery import Delivery

Array = TypeVar("Array")
Rich = TypeVar("Rich")


class RowDataset(Generic[Array, Rich]):
    """The rows of an epoch, in the order of a feed: a map-style dataset, as of torch and grain.

        dataset[7], dataset[-1], dataset.batch([3, 1, 4]).positions

    An item is (x, y), [T] each, as a batch of a feed is: torch's default_collate makes (x, y) of
    [B, T] of them, so a loop stays as it is. A dict would have the names of one framework; `batch`
    has what others need.

    May be pickled, and forked: each process opens a feed of its own when it first reads, and never
    uses that of its parent. All of them stay at the corpus of the feed that this was made of. For
    one thread.
    """

    def __init__(self, make_feed: Callable[[str], Delivery[Array, Rich]], fingerprint: str) -> None:
        """Do no I/O.

        make_feed: called in each process, with the fingerprint.  fingerprint: of the corpus.
        """
        self._make_feed = make_feed
        self._fingerprint = fingerprint
        self._length: int | None = None
        # By process: in a fork, that of the parent may not even be freed.
        self._feeds: dict[int, Delivery[Array, Rich]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return all but what is open."""
        return {**vars(self), "_feeds": {}}

    def __len__(self) -> int:
        """Return the number of rows; asks the server, once.

        Raises: InvalidRequest if no row fits; as for iterating a feed.
        """
        if self._length is None:
            self._length = self._feed._epoch_rows()
        return self._length

    def __getitem__(self, index: int) -> Pair[Array]:
        """Return (x, y) of a row.

        index: in [-length, length).  Raises: IndexError; as for iterating a feed.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Pair[Array]]:
        """Return (x, y) of some rows, in this order, by one request for up to 4,096 of them.
        torch's DataLoader calls this with the indices of a batch.

        indices: as of `__getitem__`; one may come several times.
        """
        samples = self._samples(indices)
        pairs: list[Pair[Array]] = []
        for begin in range(0, len(samples), ROWS_MAX):
            (x, y), _ = self._feed._listed(samples[begin : begin + ROWS_MAX])
            pairs += zip(x, y, strict=True)  # type: ignore[call-overload]
        return pairs

    def batch(self, indices: Iterable[int]) -> Rich:
        """Return some rows as a batch that carries more than x and y, as of `batches` of a feed,
        but without states: it is the sampler that has a position.

        indices: 1 to 4,096, as of `__getitem__`.  Raises: InvalidRequest for another number.
        """
        samples = self._samples(indices)
        require_range("indices", len(samples), 1, ROWS_MAX + 1)
        return self._feed._listed_batch(samples)

    def __repr__(self) -> str:
        """Show the number of rows, if it is known."""
        return f"<RowDataset of {'some' if self._length is None else self._length} rows>"

    @property
    def _feed(self) -> Delivery[Array, Rich]:
        """The feed of this process."""
        process = os.getpid()
        if process not in self._feeds:
            self._feeds[process] = self._make_feed(self._fingerprint)
        return self._feeds[process]

    def _samples(self, indices: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return the sample of each index.  Raises: IndexError, naming one that is out of range."""
        count = len(self)
        found = np.array([as_index(each) for each in indices], np.int64)
        outside = found[(found < -count) | (found >= count)]
        if outside.size:
            raise IndexError(f"{outside[0]} is not in [{-count}, {count}), the rows of an epoch")
        return np.where(found < 0, found + count, found)
