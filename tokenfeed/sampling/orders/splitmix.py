"""Counter-based hashing for the orders: pure functions of 64-bit words, vectorized.

`mix` is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014; the constants are Stafford's variant 13). Its only arithmetic is
modulo 2^64, so any language can reproduce it. docs/decisions/0001-orders.md explains why this and
not Philox.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
"""Arrays of 64-bit words. Never plain numpy scalars: they warn on overflow, arrays wrap."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27, _SHIFT_30, _SHIFT_31, _SHIFT_32 = (np.uint64(n) for n in (27, 30, 31, 32))
_LOW_32 = np.uint64(0xFFFFFFFF)


def mix(words: Words) -> Words:
    """Return a hash of each word, a bijection on 64-bit words.  uint64[n] -> uint64[n]."""
    z = words + _GAMMA
    z ^= z >> _SHIFT_30
    z *= _FACTOR_1
    z ^= z >> _SHIFT_27
    z *= _FACTOR_2
    z ^= z >> _SHIFT_31
    return z


@lru_cache(64)
def subkeys(count: int, seed: int) -> Words:
    """Return count keys of a seed in [0, 2^64), read-only: key j is mix(mix(j) ^ seed)."""
    keys = mix(mix(np.arange(count, dtype=np.uint64)) ^ np.uint64(seed))
    keys.flags.writeable = False
    return keys


@lru_cache(16)
def subkeys_of(count: int, seeds: tuple[int, ...]) -> Words:
    """Return `subkeys` of several seeds, uint64[count, seeds]. Read-only."""
    keys = np.stack([subkeys(count, seed) for seed in seeds], axis=1)
    keys.flags.writeable = False
    return keys


def reduce_64(words: Words, limit: Words | np.uint64) -> Words:
    """Return floor(word * limit / 2^64), in [0, limit): the high half of a 128-bit product.

    words: uint64[n].  limit: in [1, 2^63], one, or one for each word.  Computed from 32-bit halves,
    since numpy has no 128-bit integers.
    """
    limit_low, limit_high = limit & _LOW_32, limit >> _SHIFT_32
    high, low = words >> _SHIFT_32, words & _LOW_32
    middle = high * limit_low + (low * limit_low >> _SHIFT_32)
    if not np.any(limit_high):
        product: Words = middle >> _SHIFT_32
        return product
    carry = (middle & _LOW_32) + low * limit_high
    product_high: Words = high * limit_high + (middle >> _SHIFT_32) + (carry >> _SHIFT_32)
    return product_high


def reduce_32(words: Words, limit: Words | np.uint64) -> Words:
    """Return floor((word >> 32) * limit / 2^32), in [0, limit).

    words: uint64[n].  limit: in [1, 2^32], one, or one for each word.
    """
    return (words >> _SHIFT_32) * limit >> _SHIFT_32
