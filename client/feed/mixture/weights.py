"""Shares of sources -> whole samples of a block, by one published rule (docs/training.md).

Only integers are part of a stream: two libraries that round floats differently would read other
rows under the same weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from fractions import Fraction
from numbers import Integral, Real

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.stages import BLOCK_MAX

_LOG = logging.getLogger("tokenfeed.client")

_BLOCKS = (100, 1_000, 10_000, 100_000, 1_000_000)
_INTEGER_MAX = (1 << 64) - 1
_TOLERANCE = Fraction(1, 100)
"""How far a share may be off, relative to what was asked for."""


def block_weights(weights: Mapping[str, float], block: int | None = None) -> dict[str, int]:
    """Return the samples of each source in a block.

    weights: of each source, not negative, not all 0. Integers are used as they are. If one is not
    an integer, all are shares: of the smallest block of 100, 1,000, 10,000, 100,000 or 1,000,000
    samples in which each is within 1 % of what was asked for, by largest remainders, or of the
    largest block if there is none; then the worst deviation is logged.
    block: maximum number of samples in a block, in [1, 2^20]; None is 2^20 for integers, 1,000,000
    for shares.
    Raises: InvalidRequest, naming the source, the limit and the cure.
    """
    exact = {name: _exact(name, weight) for name, weight in weights.items()}
    total = sum(exact.values())
    if not total:
        raise InvalidRequest("weights", "are all 0; at least one source needs a weight above 0")
    if all(weight.denominator == 1 for weight in exact.values()):
        most = block or BLOCK_MAX
        if total > most:
            cure = "divide them by a common factor, or give shares such as 0.7"
            problem = f"have the sum {total}, above the block of {most} samples; {cure}"
            raise InvalidRequest("weights", problem)
        return {name: int(weight) for name, weight in exact.items()}
    return _of_shares({name: weight / total for name, weight in exact.items()}, block)


def _of_shares(shares: Mapping[str, Fraction], block: int | None) -> dict[str, int]:
    largest = block or _BLOCKS[-1]
    for size in (*(size for size in _BLOCKS if size < largest), largest):
        counts = largest_remainders(shares, size)
        deviations = {
            name: abs(Fraction(counts[name], size) / share - 1)
            for name, share in shares.items()
            if share
        }
        worst = max(deviations, key=lambda name: deviations[name])
        if deviations[worst] <= _TOLERANCE:
            return counts
    lost = [name for name, share in shares.items() if share and not counts[name]]
    if lost:
        smallest = f"the smallest possible one is {_shown(Fraction(1, largest))}"
        cure = "leave the source out, give it a larger weight, or give integers"
        raise InvalidRequest(
            f"weights.{lost[0]}",
            f"is a share of {_shown(shares[lost[0]])}, less than a sample of a block of {largest}; "
            f"{smallest}; {cure}",
        )
    _LOG.warning(
        "mixture rounded block=%d worst=%s share=%s instead of %s, off by %s %%",
        largest,
        worst,
        _shown(Fraction(counts[worst], largest)),
        _shown(shares[worst]),
        _shown(100 * deviations[worst]),
    )
    return counts


def largest_remainders(shares: Mapping[str, Fraction], block: int) -> dict[str, int]:
    """Return how many of `block` samples each share gets: rounded down, and what is left goes to
    the largest remainders, the first ones if they are equal.
    """
    quotas = {name: share * block for name, share in shares.items()}
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: counts[name] - quotas[name])  # stable
    for name in by_remainder[: block - sum(counts.values())]:
        counts[name] += 1
    return counts


def _exact(name: str, weight: float) -> Fraction:
    """Return a weight as it is written: 0.1 is a tenth.  Raises: InvalidRequest."""
    subject = f"weights.{name}"
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise InvalidRequest(subject, f"{weight!r} is not a number")
    if isinstance(weight, Integral):
        if not -_INTEGER_MAX <= weight <= _INTEGER_MAX:
            raise InvalidRequest(subject, f"has more than {_INTEGER_MAX.bit_length()} bits")
        exact = Fraction(int(weight))
    elif math.isfinite(weight):
        # The shortest decimal that gives this float; also of a numpy float.
        exact = Fraction(repr(float(weight)))
    else:
        raise InvalidRequest(subject, f"{weight!r} is not a finite number")
    if exact < 0:
        raise InvalidRequest(subject, f"{weight} is negative; 0 pauses a source")
    return exact


def _shown(value: Fraction) -> str:
    return f"{float(value):.3g}"
