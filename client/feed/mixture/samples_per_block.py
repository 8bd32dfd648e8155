"""Shares of sources -> whole samples of a block, by one published rule (docs/mixtures.md).

Only integers are part of a stream: two libraries that round floats differently would read other
rows under the same weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.stage import BLOCK_MAX

_LOG = logging.getLogger("tokenfeed.client")

_BLOCKS = (100, 1_000, 10_000, 100_000, 1_000_000)
_INTEGER_MAX = (1 << 64) - 1
_TOLERANCE = 100
"""A share may be off by 1/100 of what was asked for."""


def samples_per_block(weights: Mapping[str, float], block: int | None = None) -> dict[str, int]:
    """Return how many samples each source has in a block, by the name of the source.

    weights: name of a source -> its weight. If all are integers, they are the result. Otherwise all
    are shares: the block has the smallest size of 100, 1,000, 10,000, 100,000 and 1,000,000 samples
    in which each share is within 1 % of what was asked for, by largest remainders. If there is
    none, it has the largest size, and the worst deviation is logged.
    block: maximum number of samples in a block, in [1, 2^20]. For shares it is the largest size, in
    place of those above it. None is 2^20 for integers, 1,000,000 for shares.
    Raises: InvalidRequest, naming limit and cure, if a weight is negative, not finite or no number,
    all are 0, integers have a sum above the maximum, or a share would have no sample in a block.
    """
    parts, are_integers = _proportions(weights)
    total = sum(parts.values())
    if not total:
        raise InvalidRequest("weights", "are all 0; at least one source needs a weight above 0")
    if not are_integers:
        return _of_shares(parts, block)
    most = block or BLOCK_MAX
    if total > most:
        cure = "divide them by a common factor, or give shares such as 0.7"
        problem = f"have the sum {total}, above the block of {most} samples; {cure}"
        raise InvalidRequest("weights", problem)
    return parts


def proportions(weights: Mapping[str, float]) -> dict[str, int]:
    """Return integers in exactly the proportions of weights, by name; 0.1 counts as a tenth.

    Raises: InvalidRequest if a weight is negative, not finite, no number, or an integer of more
    than 64 bits.
    """
    return _proportions(weights)[0]


def _proportions(weights: Mapping[str, float]) -> tuple[dict[str, int], bool]:
    """Return integers in the proportions of weights, and whether they are the weights."""
    exact = {name: _exact(name, weight) for name, weight in weights.items()}
    scale = math.lcm(*(denominator for _, denominator in exact.values()))
    parts = {name: part * (scale // denominator) for name, (part, denominator) in exact.items()}
    return parts, scale == 1


def _of_shares(parts: Mapping[str, int], block: int | None) -> dict[str, int]:
    largest, total = block or _BLOCKS[-1], sum(parts.values())
    for size in (*(size for size in _BLOCKS if size < largest), largest):
        counts = largest_remainders(parts, size)
        if all(
            _TOLERANCE * abs(counts[name] * total - part * size) <= part * size
            for name, part in parts.items()
        ):
            return counts
    lost = [name for name, part in parts.items() if part and not counts[name]]
    if lost:
        smallest = f"the smallest possible one is {_shown(Fraction(1, largest))}"
        cure = "leave the source out, give it a larger weight, or give integers"
        raise InvalidRequest(
            f"weights.{lost[0]}",
            f"is a share of {_shown(Fraction(parts[lost[0]], total))}, less than a sample of a "
            f"block of {largest}; {smallest}; {cure}",
        )
    worst, deviation = worst_deviation(parts, counts)
    _LOG.warning(
        "mixture rounded block=%d worst=%s share=%s instead of %s, off by %s %%",
        largest,
        worst,
        _shown(Fraction(counts[worst], largest)),
        _shown(Fraction(parts[worst], total)),
        _shown(100 * deviation),
    )
    return counts


def worst_deviation(parts: Mapping[str, int], counts: Mapping[str, int]) -> tuple[str, Fraction]:
    """Return the source whose share is off the most, and by how much, relative to what was asked
    for.

    parts: what was asked for, in any unit.  counts: samples of each source in a block.
    """
    total, size = sum(parts.values()), sum(counts.values())
    deviations = {
        name: Fraction(abs(counts[name] * total - part * size), part * size)
        for name, part in parts.items()
        if part
    }
    worst = max(deviations, key=lambda name: deviations[name])
    return worst, deviations[worst]


def largest_remainders(parts: Mapping[str, int], block: int) -> dict[str, int]:
    """Return how many of `block` samples each part gets: rounded down, and what is left goes to
    the largest remainders, the first ones if they are equal.

    parts: in any unit.
    """
    total = sum(parts.values())
    quotas = {name: divmod(part * block, total) for name, part in parts.items()}
    counts = {name: whole for name, (whole, _) in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: -quotas[name][1])  # stable
    for name in by_remainder[: block - sum(counts.values())]:
        counts[name] += 1
    return counts


def _exact(name: str, weight: float) -> tuple[int, int]:
    """Return a weight as it is written, as a fraction: 0.1 is a tenth.  Raises: InvalidRequest."""
    subject = f"weights.{name}"
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise InvalidRequest(subject, f"{weight!r} is not a number")
    if isinstance(weight, Integral):
        if not -_INTEGER_MAX <= weight <= _INTEGER_MAX:
            raise InvalidRequest(subject, f"has more than {_INTEGER_MAX.bit_length()} bits")
        exact = int(weight), 1
    elif math.isfinite(weight):
        # The shortest decimal that gives this float; also of a numpy float.
        exact = Decimal(repr(float(weight))).as_integer_ratio()
    else:
        raise InvalidRequest(subject, f"{weight!r} is not a finite number")
    if exact[0] < 0:
        raise InvalidRequest(subject, f"{weight} is negative; 0 pauses a source")
    return exact


def _shown(value: Fraction) -> str:
    return f"{float(value):.3g}"
