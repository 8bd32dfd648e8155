"""The interface of an order of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Order(Protocol):
    """The interface of an order: each module of sampling/orders/ has it. An order says at which
    place of a corpus the row of a sample is.

    Places are numbered from 0, file by file. They are non-overlapping windows in an order of
    windows with epochs, and windows at every token offset in one without; rows of pieces of
    documents in an order over documents. In a corpus of packed rows, each place is one of its rows.
    NAME: name on the wire.  USES_SEED: whether places depend on the seed.  HAS_EPOCHS: whether each
    epoch has every place once.  LONG_DOCUMENTS: what an order over documents can do with documents
    longer than a row ("cut", "drop", "truncate"), the default first; empty for an order of windows.
    BLOCK_TOKENS: size of the blocks that the order reads in groups, which context lengths have to
    divide; 0 for an order without groups. Such an order has places only over the files of a corpus
    (`over_files` of sampling/plan.py).
    """

    NAME: str
    USES_SEED: bool
    HAS_EPOCHS: bool
    LONG_DOCUMENTS: tuple[str, ...]
    BLOCK_TOKENS: int

    def places(
        self, samples: npt.NDArray[np.int64], seed: int, place_count: int, /
    ) -> npt.NDArray[np.int64]:
        """Return the place of each sample, int64[n], each in [0, place_count).

        samples: int64[n], as the source counts them: from 0, through all epochs.  seed: of the
        source, in [0, 2^64).  place_count: number of places of its corpus, at least 1.
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
        """Return the index of each place in its epoch. It is the inverse of `places`, which maps
        the sample epoch * place_count + index to the place.

        places: int64[n], each in [0, place_count).  epochs: int64[n], the epoch of each, at least
        0.  seed, place_count: as for `places`.
        Returns: int64[n], each in [0, place_count).
        Raises: InvalidRequest if the order has no epochs.
        """
        ...
