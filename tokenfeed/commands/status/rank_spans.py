"""Ranks as spans: a run may have more ranks than can be listed, and few of them here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Ranks without a gap.  last: is one of them."""

    first: int
    last: int


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Return ranks as spans, in their order."""
    spans: list[Span] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1].last + 1:
            spans[-1] = Span(spans[-1].first, number)
        else:
            spans.append(Span(number, number))
    return spans


def absent(spans: Sequence[Span], world_size: int) -> list[Span]:
    """Return the spans of the other ranks of a run. Takes the time of the ranks that are there."""
    begins = [0, *(span.last + 1 for span in spans)]
    ends = [*(min(span.first, world_size) for span in spans), world_size]
    gaps = zip(begins, ends, strict=True)
    return [Span(begin, end - 1) for begin, end in gaps if begin < end]


def count_of(spans: Iterable[Span]) -> int:
    """Return how many ranks these are."""
    return sum(last - first + 1 for first, last in spans)
