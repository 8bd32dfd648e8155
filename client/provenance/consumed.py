"""What a run consumed of each dataset, as ranges of own samples. Pure.

The totals are those of `stats` of a feed, which counts the same history.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.own_samples import by_times, own_samples_of
from tokenfeed.stream.parts import SourceValues, StreamParts
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.redactions import in_force

from ..feed.history import History
from .runs import by_stream, ranges_of, spec_of

Numbers = npt.NDArray[np.int64]


class Use(NamedTuple):
    """How the samples of a dataset were read.

    source: its dataset, order, seed, fingerprint, and what it does with documents.  context_length:
    T.  redactions: hashes of its lists that were in force, each 64 hexadecimal digits.
    """

    source: SourceValues
    context_length: int
    redactions: tuple[str, ...]


def consumed(history: History, dataset: str = "") -> dict[Use, list[Numbers]]:
    """Return the own samples of each dataset that were delivered, without padding.

    dataset: as for `segments`.
    Returns: int64[n, 2] each, ascending ranges that neither overlap nor touch; a sample that was
    delivered several times is in several of them (own_samples.py counts them).
    Raises: InvalidRequest for an order of a later release.
    """
    found: dict[Use, list[Numbers]] = {}
    for parts, runs in by_stream(history).items():
        for times, ranges in by_times([ranges_of(runs)]):
            for use, own in _own_of(parts, dataset, ranges):
                found.setdefault(use, []).extend([own] * times)
    return found


def _own_of(parts: StreamParts, dataset: str, ranges: Numbers) -> list[tuple[Use, Numbers]]:
    """Return the own samples in ranges of samples of a stream."""
    spec = spec_of(parts, dataset)
    sources = parts.each_source
    if not parts.sources:
        sources = (sources[0]._replace(dataset=dataset),)
    begins = {each.first_sample for each in spec.redactions}
    found = []
    for first, end in pairwise(sorted({0, *begins, SAMPLE_END - 1})):
        active = in_force(spec.redactions, first)
        clipped = np.clip(ranges, first, end)
        for number, own in enumerate(own_samples_of(spec, clipped)):
            lists = sorted({one.list_hash.hex() for one in active if one.source == number})
            if own.size:
                use = Use(sources[number], parts.context_length, tuple(lists))
                found.append((use, own))
    return found
