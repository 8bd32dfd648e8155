"""`sequential-1`: the windows in the order of the corpus, epoch after epoch.

Ignores the seed; the identity contains 0. Released; never edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NAME = "sequential-1"
USES_SEED = False
HAS_EPOCHS = True
LONG_DOCUMENTS: tuple[str, ...] = ()
BLOCK_TOKENS = 0


def places(samples: npt.NDArray[np.int64], seed: int, place_count: int) -> npt.NDArray[np.int64]:
    """Return the window of each sample.

    samples: int64[n], each >= 0.  seed: not used.  place_count: windows per epoch, in [1, 2^63).
    Returns: int64[n], each in [0, place_count).
    """
    return samples % place_count


def places_among(
    samples: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    seeds: Sequence[int],
    place_counts: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Return the window of each sample, of several sources; as `Order.places_among`."""
    return samples % np.array(place_counts, dtype=np.int64)[source]


def indices(
    places: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64], seed: int, place_count: int
) -> npt.NDArray[np.int64]:
    """Return where windows come in an epoch; as `Order.indices`."""
    return places.copy()
