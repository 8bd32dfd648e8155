"""`random-1`: windows at any token offset, with replacement, endless.

Like nanoGPT's get_batch, but by sample index and not by a generator that advances. The start is a
keyed hash of the sample, so sample 10^14 costs the same as sample 0. Released; never edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...errors import InvalidRequest
from .splitmix import Words, mix, reduce_64, subkeys, subkeys_of

NAME = "random-1"
USES_SEED = True
HAS_EPOCHS = False
LONG_DOCUMENTS: tuple[str, ...] = ()
BLOCK_TOKENS = 0


def places(samples: npt.NDArray[np.int64], seed: int, place_count: int) -> npt.NDArray[np.int64]:
    """Return the place at which the window of each sample starts.

    samples: int64[n], each >= 0.  seed: in [0, 2^64).  place_count: in [1, 2^63).
    Returns: int64[n], each in [0, place_count), uniform.
    """
    outer, inner = subkeys(2, seed)
    return _places(samples, outer, inner, np.uint64(place_count))


def places_among(
    samples: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    seeds: Sequence[int],
    place_counts: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Return the place of each sample, of several sources; as `Order.places_among`."""
    outer, inner = subkeys_of(2, tuple(seeds))[:, source]
    return _places(samples, outer, inner, np.array(place_counts, dtype=np.uint64)[source])


def indices(
    places: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64], seed: int, place_count: int
) -> npt.NDArray[np.int64]:
    """Raise InvalidRequest; as `Order.indices`."""
    raise InvalidRequest("order", f"{NAME} has no epochs, so a place has no index within one")


def _places(
    samples: npt.NDArray[np.int64],
    outer: Words | np.uint64,
    inner: Words | np.uint64,
    place_count: Words | np.uint64,
) -> npt.NDArray[np.int64]:
    words = mix(mix(samples.view(np.uint64) ^ outer) ^ inner)
    return reduce_64(words, place_count).view(np.int64)
