"""What a run has read of each source, by its history. Pure.

A source is what gives the same rows: a dataset in an order with a seed, at a context length. A
dataset that was read in two orders is two sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling import orders
from tokenfeed.sampling.own_samples import EpochSamples, by_epoch, by_times, own_samples_of
from tokenfeed.stream.spec import Mixture, SourceValues, StreamParts, StreamSpec
from tokenfeed.stream.stages import AskedStage, scheduled

from ..feed.history import History
from ..feed.mixture.schedule import sources_of

Numbers = npt.NDArray[np.int64]


class SourceKey(NamedTuple):
    """A source.  values: its dataset is "" for a stream of one dataset."""

    context_length: int
    values: SourceValues


@dataclass(frozen=True)
class Consumed:
    """What was read of a source.

    parts: a stream that it is in.  number: of the source there.  ranges: of its own samples,
    int64[n, 2] each; what was read twice is in two of them.
    """

    key: SourceKey
    parts: StreamParts
    number: int
    ranges: list[Numbers] = field(default_factory=list)

    @cached_property
    def samples(self) -> int:
        """Number of samples, as often as they were read."""
        return sum(int((each[:, 1] - each[:, 0]).sum()) for each in self.ranges)

    def by_epoch(self, rows_per_epoch: int | None) -> list[Part]:
        """Return the samples by epoch.  rows_per_epoch: None for an order without epochs."""
        if rows_per_epoch is not None:
            return [Part(_epochs(each), each) for each in by_epoch(self.ranges, rows_per_epoch)]
        return [
            Part(None, EpochSamples(0, 1, times, ranges)) for times, ranges in by_times(self.ranges)
        ]


class Part(NamedTuple):
    """Samples of one epoch, or all samples of some epochs.  epochs: [first, end); None without
    epochs.
    """

    epochs: tuple[int, int] | None
    samples: EpochSamples


def _epochs(samples: EpochSamples) -> tuple[int, int]:
    return samples.first_epoch, samples.end_epoch


class StreamTotals(NamedTuple):
    """What was read of a stream.  steps, samples: of all ranks."""

    parts: StreamParts
    steps: int
    samples: int


def stream_totals(history: History) -> list[StreamTotals]:
    """Return the streams of a history, in the order in which they were first read."""
    found: dict[StreamParts, tuple[int, int]] = {}
    for run in history.runs:
        steps, samples = found.get(run.spec, (0, 0))
        steps += run.end_batch - run.first_batch
        found[run.spec] = steps, samples + run.end_sample - run.first_sample
    return [StreamTotals(parts, *totals) for parts, totals in found.items()]


def consumed(history: History) -> list[Consumed]:
    """Return what was read of each source, in the order in which they were first read.

    Raises: NotFound for an order of a later release.
    """
    spans: dict[StreamParts, list[tuple[int, int]]] = {}
    for run in history.runs:
        spans.setdefault(run.spec, []).append((run.first_sample, run.end_sample))
    found: dict[SourceKey, Consumed] = {}
    for parts, each in spans.items():
        spec, values = spec_of(parts), parts.sources or (_values(parts),)
        for times, ranges in by_times([np.array(each, dtype=np.int64)]):
            of_sources = own_samples_of(spec, ranges)
            for number, (source, own) in enumerate(zip(values, of_sources, strict=True)):
                if len(own):
                    key = SourceKey(parts.context_length, source)
                    begun = found.setdefault(key, Consumed(key, parts, number))
                    begun.ranges.extend([own] * times)
    return list(found.values())


def spec_of(parts: StreamParts) -> StreamSpec:
    """Return the specification of a stream, without planes and redactions; that of one dataset
    without its name.  Raises: NotFound for an order of a later release.
    """
    if not parts.stages:
        return StreamSpec.of_dataset(
            "",
            orders.find(parts.order),
            parts.seed,
            parts.context_length,
            long_documents=parts.long_documents,
        )
    asked = [AskedStage(each.first_sample, each.weights) for each in parts.stages]
    sources = sources_of(parts)
    return StreamSpec(
        parts.context_length, sources, Mixture(parts.seed, scheduled(asked, len(sources)))
    )


def _values(parts: StreamParts) -> SourceValues:
    """Return the only source of a stream of one dataset."""
    return SourceValues(
        "", parts.order, parts.seed, parts.fingerprint, parts.long_documents, parts.pieces
    )
