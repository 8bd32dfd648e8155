"""`shuffled-1`: every window once per epoch, in a new permutation for each epoch.

A keyed permutation of [0, N), computed point by point: nothing is stored, and any sample of any
epoch costs the same. It is a generalized Feistel network over Z_a x Z_b with cycle walking (Black
and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, method 3). a and b are both about
sqrt(N), so a * b exceeds N by less than 2 * sqrt(N) + 2, and few points have to walk. With halves
of whole bits, up to every second point would. Released: the windows that it returns never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np
import numpy.typing as npt

from .splitmix import Words, mix, reduce_32, subkeys, subkeys_of

NAME = "shuffled-1"
USES_SEED = True
HAS_EPOCHS = True
LONG_DOCUMENTS: tuple[str, ...] = ()
BLOCK_TOKENS = 0

# Few windows need more rounds: at N = 5 to 8 permutations are measurably non-uniform after 12
# rounds and uniform after 16; from N = 9 on, 10 are enough (chi-squared over 200,000 epochs;
# tests/tokenfeed/sampling/orders/test_shuffled_v1.py).
_ROUNDS = 12
_ROUNDS_SMALL = 24
_SMALL = 64


def places(samples: npt.NDArray[np.int64], seed: int, place_count: int) -> npt.NDArray[np.int64]:
    """Return the window of each sample.

    samples: int64[n], each >= 0.  seed: in [0, 2^64).  place_count: windows per epoch N, in [1,
    2^63).
    Returns: int64[n], each in [0, N); over the samples of one epoch, [k * N, (k + 1) * N), a
    permutation.
    """
    epochs, indices = np.divmod(samples, place_count)
    return permuted(indices, epochs, seed, place_count)


def indices(
    places: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64], seed: int, place_count: int
) -> npt.NDArray[np.int64]:
    """Return where windows come in an epoch, the inverse of `places`; as `Order.indices`."""
    return permuted(places, epochs, seed, place_count, inverse=True)


def permuted(
    points: npt.NDArray[np.int64],
    epochs: npt.NDArray[np.int64],
    seed: int,
    place_count: int,
    *,
    inverse: bool = False,
) -> npt.NDArray[np.int64]:
    """Return where the permutation of each point's epoch maps it.

    points: int64[n], each in [0, place_count).  epochs: int64[n], of each point, at least 0.  seed,
    place_count: as for `places`.  inverse: maps places to indices.
    """
    if points.size:
        first, last = int(epochs.min()), int(epochs.max())
        if 2 * (last - first + 1) * max(_sides(place_count)) <= points.size:
            known = range(first, last + 1)
            return _permuted_by_table(points, epochs, known, seed, place_count, inverse)
    keys = _round_keys(seed, epochs.view(np.uint64), _rounds(place_count))
    side_a, side_b = map(np.uint64, _sides(place_count))
    found = _feistel(points.view(np.uint64), keys, side_a, side_b, inverse)
    # A point outside [0, N) follows its cycle until it is inside: fewer than a * b - N steps.
    outside = np.flatnonzero(found >= np.uint64(place_count))
    while outside.size:
        found[outside] = _feistel(
            found[outside], keys[:, outside % keys.shape[1]], side_a, side_b, inverse
        )
        outside = outside[found[outside] >= np.uint64(place_count)]
    return found.view(np.int64)


def _permuted_by_table(
    points: npt.NDArray[np.int64],
    epochs: npt.NDArray[np.int64],
    known: range,
    seed: int,
    place_count: int,
    inverse: bool,
) -> npt.NDArray[np.int64]:
    """Return the same, where samples share few points: small blocks, or one epoch of few windows.
    Each round then hashes each point of each epoch once, and samples look it up.

    known: all epochs that occur.  Takes half the time for 4,096 samples of blocks of 100.
    """
    side_a, side_b = _sides(place_count)
    a, b = np.uint64(side_a), np.uint64(side_b)
    each = np.uint64(known.start) + np.arange(len(known), dtype=np.uint64)
    keys = mix(subkeys(_rounds(place_count), seed)[:, np.newaxis] ^ each)[:, :, np.newaxis]
    addends = [
        reduce_32(mix(keys[parity::2] ^ points), side).reshape(len(keys) // 2, -1)
        for parity, points, side in (
            (0, np.arange(side_b, dtype=np.uint64), a),
            (1, np.arange(side_a, dtype=np.uint64), b),
        )
    ]

    def by_table(
        points: npt.NDArray[np.int64], epoch: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        left, right = (half.view(np.uint64) for half in np.divmod(points, side_b))
        first_a, first_b = epoch * side_a, epoch * side_b
        for index in _in_turn(_rounds(place_count), inverse):
            of_half = addends[index % 2][index // 2]
            if index % 2 == 0:
                left = step(left, of_half.take(first_b + right.view(np.int64)), a)
            else:
                right = step(right, of_half.take(first_a + left.view(np.int64)), b)
        return (left * b + right).view(np.int64)

    step = _subtract if inverse else _add
    epoch = epochs - known.start
    found = by_table(points, epoch)
    outside = np.flatnonzero(found >= place_count)
    while outside.size:
        found[outside] = by_table(found[outside], epoch[outside])
        outside = outside[found[outside] >= place_count]
    return found


def places_among(
    samples: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    seeds: Sequence[int],
    place_counts: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Return the window of each sample, of several sources; as `Order.places_among`."""
    found = np.empty_like(samples)
    rounds = np.array([_rounds(count) for count in place_counts])
    of_sample = rounds[source]
    for count in set(rounds.tolist()):
        at = np.flatnonzero(of_sample == count)
        keys = subkeys_of(count, tuple(seeds))
        found[at] = _places_among(samples[at], source[at], keys, place_counts)
    return found


def _places_among(
    samples: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    source_keys: Words,
    place_counts: Sequence[int],
) -> npt.NDArray[np.int64]:
    """source_keys: uint64[rounds, sources]."""
    limits = np.array(place_counts, dtype=np.int64)[source]
    epochs, indices = np.divmod(samples, limits)
    keys = mix(source_keys[:, source] ^ epochs.view(np.uint64))
    sides = np.array([_sides(count) for count in place_counts], dtype=np.uint64)
    side_a, side_b = sides[source].T
    limit = limits.view(np.uint64)
    places = _feistel(indices.view(np.uint64), keys, side_a, side_b)
    outside = np.flatnonzero(places >= limit)
    while outside.size:
        places[outside] = _feistel(
            places[outside], keys[:, outside], side_a[outside], side_b[outside]
        )
        outside = outside[places[outside] >= limit[outside]]
    return places.view(np.int64)


def _rounds(place_count: int) -> int:
    return _ROUNDS_SMALL if place_count <= _SMALL else _ROUNDS


def _sides(place_count: int) -> tuple[int, int]:
    """Return a, the smallest even number with a * a >= N, and b, the smallest with a * b >= N.

    If both a and b were odd, only even permutations would be possible.
    """
    side_a = isqrt(place_count - 1) + 1
    side_a += side_a % 2
    return side_a, -(-place_count // side_a)


def _round_keys(seed: int, epochs: Words, rounds: int) -> Words:
    """Return a key per round and sample, uint64[rounds, n]; uint64[rounds, 1] if all samples are of
    the same epoch.
    """
    keys = subkeys(rounds, seed)[:, np.newaxis]
    if not epochs.size:
        return mix(keys ^ epochs)
    first, last = epochs.min(), epochs.max()
    if first == last:
        return mix(keys ^ epochs[:1])
    count = int(last - first) + 1
    if count > epochs.size // 2:
        return mix(keys ^ epochs)
    # Few epochs: their keys once each.
    each = first + np.arange(count, dtype=np.uint64)
    return mix(keys ^ each)[:, (epochs - first).view(np.int64)]


def _feistel(
    points: Words,
    keys: Words,
    a: Words | np.uint64,
    b: Words | np.uint64,
    inverse: bool = False,
) -> Words:
    """Permute [0, a * b): a point is (left, right) with right in [0, b), and each round adds a hash
    of one to the other.  a, b: one, or one for each point.  inverse: undoes the rounds, the last
    one first.
    """
    left, right = np.divmod(points, b)
    step = _subtract if inverse else _add
    for index in _in_turn(len(keys), inverse):
        if index % 2 == 0:
            left = step(left, reduce_32(mix(right ^ keys[index]), a), a)
        else:
            right = step(right, reduce_32(mix(left ^ keys[index]), b), b)
    permuted: Words = left * b + right
    return permuted


def _in_turn(rounds: int, inverse: bool) -> range:
    """Return the rounds in the order in which they are done, or undone."""
    return range(rounds - 1, -1, -1) if inverse else range(rounds)


def _add(value: Words, addend: Words, modulus: Words | np.uint64) -> Words:
    """Return (value + addend) mod modulus, for both below modulus: the smaller of the sum and the
    difference, which wraps around to a large number if the sum is below modulus.
    """
    total = value + addend
    reduced: Words = np.minimum(total, total - modulus)
    return reduced


def _subtract(value: Words, subtrahend: Words, modulus: Words | np.uint64) -> Words:
    """Return (value - subtrahend) mod modulus, for both below modulus: the difference, which wraps
    around to a large number if it is negative, or the sum with modulus, which wraps back.
    """
    difference = value - subtrahend
    reduced: Words = np.minimum(difference, difference + modulus)
    return reduced
