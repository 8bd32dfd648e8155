"""Where epochs of a source end in a stream."""

from __future__ import annotations

from fractions import Fraction

from tokenfeed.sampling.mixture import counts_at
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stream import Stream

from .target import Target


def end_of_epoch(
    target: Target, stream: Stream, number: int, epochs: int | None, sample: int
) -> int | None:
    """Return the sample, from a given one on, at which a source has ended epochs, or behind its
    last sample if a later stage drops it before; None for an order without epochs.

    number: is that of the source.  epochs: says how many; None is those that have ended at the
    sample, and the next one.
    """
    last = SAMPLE_END - 1
    before, at_last = (_epochs_before(target, stream, number, each) for each in (sample, last))
    if before is None or at_last is None:
        return None
    wanted = min(Fraction(epochs if epochs is not None else int(before) + 1), at_last)

    def has_ended(at: int) -> bool:
        ended = _epochs_before(target, stream, number, at)
        return ended is not None and ended >= wanted

    low, high = sample, sample
    while not has_ended(high):
        low, high = high, min(2 * high + 1, last)
    while low < high:
        middle = (low + high) // 2
        if has_ended(middle):
            high = middle
        else:
            low = middle + 1
    return high


def epochs_between(
    target: Target, stream: Stream, number: int, first_sample: int, end_sample: int
) -> int:
    """Return how many epochs of a source samples of a stream have; 0 for an order without epochs.

    number: is that of the source.
    """
    ends = (min(each, SAMPLE_END - 1) for each in (first_sample, end_sample))
    first, end = (_epochs_before(target, stream, number, each) for each in ends)
    return 0 if first is None or end is None else int(end - first)


def _epochs_before(target: Target, stream: Stream, number: int, sample: int) -> Fraction | None:
    """Return the epochs of a source before a sample, by the last stage that has the source; None
    for an order without epochs.
    """
    for place in range(stream.place_of(sample), -1, -1):
        stage, end = stream.stages[place], stream.end_of(place)
        if number in {share.source for share in stage.shares}:
            alone = target.alone(stream.sources[number], stage.context_length)
            rows = target.rows_per_epoch(alone)
            at = sample if end is None else min(sample, end)
            own = counts_at(stage, stream.seed, at)[number]
            return None if rows is None else Fraction(own, rows)
    return Fraction(0)
