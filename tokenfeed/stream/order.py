"""The interface of an order of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Order(Protocol):
    """The interface of a module of orders/.

    NAME: on the wire.  USES_SEED: whether the seed is part of the identity.
    HAS_EPOCHS: the places are the non-overlapping windows, each visited once per epoch; else every
    token offset.  LONG_DOCUMENTS: what it can do with documents longer than a row, the default
    first; none if its rows are windows. The places of an order over documents are their rows.
    """

    NAME: str
    USES_SEED: bool
    HAS_EPOCHS: bool
    LONG_DOCUMENTS: tuple[str, ...]

    def places(
        self, samples: npt.NDArray[np.int64], seed: int, place_count: int, /
    ) -> npt.NDArray[np.int64]:
        """Return the place of each sample, int64[n], each in [0, place_count).

        samples: int64[n], the source's own, each at least 0, of any epoch.  seed: in [0, 2^64).
        place_count: at least 1.
        """
        ...

    def places_among(
        self,
        samples: npt.NDArray[np.int64],
        source: npt.NDArray[np.int64],
        seeds: Sequence[int],
        place_counts: Sequence[int],
        /,
    ) -> npt.NDArray[np.int64]:
        """Return what `places` returns for samples of several sources, in one pass.

        source: int64[n], for each sample the index of its source in seeds and place_counts, which
        have one value for each source.
        """
        ...

    def indices(
        self,
        places: npt.NDArray[np.int64],
        epochs: npt.NDArray[np.int64],
        seed: int,
        place_count: int,
        /,
    ) -> npt.NDArray[np.int64]:
        """Return where places come in an epoch: the inverse of `places`, which maps sample
        epoch * place_count + index to a place.

        places, epochs: int64[n], each in [0, place_count), and at least 0.
        Returns: int64[n], each in [0, place_count).  Raises: InvalidRequest if it has no epochs.
        """
        ...
