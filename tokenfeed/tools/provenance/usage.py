"""What a run consumed of each source, as ranges of own samples. Pure.

The totals are those of `stats` of a feed, which counts the same history.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import History
from tokenfeed.sampling.own_samples import by_times, own_samples_of
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stream import Stream

from .runs import ranges_of

Numbers = npt.NDArray[np.int64]


class Use(NamedTuple):
    """How the samples of a source were read.

    source: its number in the stream.  context_length: T.  redactions: hashes of its lists that were
    in force, ascending.
    """

    source: int
    context_length: int
    redactions: tuple[bytes, ...]


def consumed(stream: Stream, history: History) -> dict[Use, list[Numbers]]:
    """Return the own samples of each source that were delivered, without padding.

    Returns: int64[n, 2] each, ascending ranges that neither overlap nor touch; a sample that was
    delivered several times is in several of them (own_samples.py counts them).
    """
    found: dict[Use, list[Numbers]] = {}
    for times, ranges in by_times([ranges_of(history)]):
        for use, own in _own_of(stream, ranges):
            found.setdefault(use, []).extend([own] * times)
    return found


def _own_of(stream: Stream, ranges: Numbers) -> Iterator[tuple[Use, Numbers]]:
    """Yield the own samples in ranges of samples, by stage and by the redactions in force."""
    begins = [stage.first_sample for stage in stream.stages]
    later = [each.first_sample for each in stream.redactions if each.first_sample > begins[0]]
    for first, end in pairwise(sorted({*begins, *later, SAMPLE_END - 1})):
        part, _ = stream.at(first)
        for source, own in zip(
            part.sources, own_samples_of(part, np.clip(ranges, first, end)), strict=True
        ):
            if own.size:
                lists = {one.list_hash for one in part.redactions if one.source == source.number}
                yield Use(source.number, part.context_length, tuple(sorted(lists))), own
