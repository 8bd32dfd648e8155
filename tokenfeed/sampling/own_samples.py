"""The own samples of each source in ranges of samples, as ranges. Pure.

Whole blocks of a mixture are one range by arithmetic; only in a block that is begun or not finished
they are scattered. So 10^9 samples cost the same as two blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..stream.position import SAMPLE_END, require_range
from ..stream.stage import Stage
from ..stream.stream import Stream
from .mixture_v1 import locate

Numbers = npt.NDArray[np.int64]


def own_samples(stream: Stream, first_sample: int, end_sample: int) -> list[Numbers]:
    """Return the own samples that each source has in [first_sample, end_sample).

    stream: with a first stage that begins at or before first_sample.
    Returns: for each source int64[n, 2], first and end of each range; ascending, they neither
    overlap nor touch.
    Raises: InvalidRequest unless both are in [0, 2^63).
    """
    require_range("first_sample", first_sample, 0, SAMPLE_END)
    require_range("end_sample", end_sample, 0, SAMPLE_END)
    return own_samples_of(stream, np.array([[first_sample, end_sample]], dtype=np.int64))


def own_samples_of(stream: Stream, ranges: Numbers) -> list[Numbers]:
    """Return the own samples that each source has in ranges of samples, like `own_samples`.

    ranges: int64[n, 2], ascending; they do not overlap.
    """
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    # What is skipped within a block is taken out of the whole, as it is less than the rest.
    block_size = max(stage.block_size for stage in stream.stages)
    gaps = np.stack([ranges[:-1, 1], ranges[1:, 0]], axis=1)
    small = np.flatnonzero(gaps[:, 1] - gaps[:, 0] < block_size)
    wholes = np.delete(ranges, [2 * small + 1, 2 * small + 2]).reshape(-1, 2)
    kept: list[list[Numbers]] = [[] for _ in stream.sources]
    left_out: list[list[Numbers]] = [[] for _ in stream.sources]
    for found, parts in ((kept, wholes), (left_out, gaps[small])):
        for first, end in parts.tolist():
            _add(found, stream, first, end)
    return [merged(plus, minus) for plus, minus in zip(kept, left_out, strict=True)]


def _add(found: list[list[Numbers]], stream: Stream, first_sample: int, end_sample: int) -> None:
    """Add the own samples of each source in a range, to a list of ranges for each."""
    places = {number: place for place, number in enumerate(stream.numbers)}
    first = first_sample
    while first < end_sample:
        place = stream.place_of(first)
        stage, stage_end = stream.stages[place], stream.end_of(place)
        end = end_sample if stage_end is None else min(end_sample, stage_end)
        of_stage = [found[places[share.source]] for share in stage.shares]
        _add_of_stage(of_stage, stage, stream.seed, first, end)
        first = end


def _add_of_stage(
    found: list[list[Numbers]], stage: Stage, seed: int, first: int, end: int
) -> None:
    """Add the own samples of each share of a stage, to a list of ranges for each."""
    size = stage.block_size
    # Blocks that begin and end in the range, if there are any.
    first_block = -(-(first - stage.first_sample) // size)
    end_block = (end - stage.first_sample) // size
    if first_block >= end_block:
        _add_scattered(found, stage, seed, first, end)
        return
    _add_scattered(found, stage, seed, first, stage.first_sample + first_block * size)
    for ranges, (_, weight, base) in zip(found, stage.shares, strict=True):
        if weight:
            whole = [[base + first_block * weight, base + end_block * weight]]
            ranges.append(np.array(whole, dtype=np.int64))
    _add_scattered(found, stage, seed, stage.first_sample + end_block * size, end)


def _add_scattered(
    found: list[list[Numbers]], stage: Stage, seed: int, first: int, end: int
) -> None:
    """Add each sample of [first, end), less than two blocks, by itself."""
    if first == end:
        return
    source, own = locate(stage, seed, np.arange(first, end, dtype=np.int64))
    by_source = np.argsort(source, kind="stable")
    source, own = source[by_source], own[by_source]
    begins = np.flatnonzero(np.diff(source, prepend=-1))
    parts = np.split(own, begins[1:])
    for number, samples in zip(source[begins].tolist(), parts, strict=True):
        found[number].append(np.stack([samples, samples + 1], axis=1))


def merged(ranges: Sequence[Numbers], without: Sequence[Numbers] = ()) -> Numbers:
    """Return all samples of ranges once, as ascending ranges that neither overlap nor touch.

    ranges: int64[n, 2] each, in any order.  without: such ranges, whose samples occur once less.
    Returns: int64[n, 2].
    """
    edges, depths = _depths(ranges, without)
    return edges[np.diff(depths > 0, prepend=False)].reshape(-1, 2)


def by_times(ranges: Sequence[Numbers]) -> list[tuple[int, Numbers]]:
    """Return ranges by how often their samples occur in them.

    ranges: int64[n, 2] each, in any order; they may overlap.
    Returns: (times, int64[n, 2]) by ascending times; all these neither overlap nor touch another
    of the same times, and ascend.
    """
    edges, depths = _depths(ranges)
    found = []
    for times in sorted({*depths.tolist()} - {0}):
        here = np.flatnonzero(depths == times)
        found.append((times, np.stack([edges[here], edges[here + 1]], axis=1)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class EpochSamples:
    """Samples of one source in one epoch, or all samples of each of some epochs.

    first_epoch, end_epoch: more than one epoch only if all of their samples occur.  times: how
    often each of these samples does.  ranges: int64[n, 2], of the first epoch; ascending, they
    neither overlap nor touch.
    """

    first_epoch: int
    end_epoch: int
    times: int
    ranges: Numbers

    @property
    def count(self) -> int:
        """Samples of all these epochs, as often as they occur."""
        samples = int((self.ranges[:, 1] - self.ranges[:, 0]).sum())
        return (self.end_epoch - self.first_epoch) * self.times * samples


def by_epoch(ranges: Sequence[Numbers], rows_per_epoch: int) -> list[EpochSamples]:
    """Return the samples of a source by epoch, and by how often they occur.

    ranges: int64[n, 2] each, in any order, as of `own_samples` of several runs; they may overlap.
    rows_per_epoch: at least 1.
    Returns: by ascending first epoch, then times.
    """
    found = []
    for times, each in by_times(ranges):
        epochs, parts = _whole_epochs(each, rows_per_epoch)
        for first, end in epochs:
            whole = [[first * rows_per_epoch, (first + 1) * rows_per_epoch]]
            found.append(EpochSamples(first, end, times, np.array(whole, dtype=np.int64)))
        epoch_of = parts[:, 0] // rows_per_epoch
        begins = np.flatnonzero(np.diff(epoch_of, prepend=-1)).tolist()
        for begin, finish in pairwise([*begins, len(parts)]):
            epoch = int(epoch_of[begin])
            found.append(EpochSamples(epoch, epoch + 1, times, parts[begin:finish]))
    return sorted(found, key=lambda one: (one.first_epoch, one.times))


def _whole_epochs(ranges: Numbers, rows: int) -> tuple[list[tuple[int, int]], Numbers]:
    """Return the epochs that are all in one of the ranges, as (first, end), and the rest of the
    ranges, each within an epoch: int64[n, 2], ascending.
    """
    first, end = ranges[:, 0], ranges[:, 1]
    # Only a range that crosses the border of an epoch, or is one, is cut.
    is_inside = (first // rows == (end - 1) // rows) & (end - first < rows)
    epochs, parts = [], [ranges[is_inside]]
    for begin, finish in ranges[~is_inside].tolist():
        first_epoch, end_epoch = -(-begin // rows), finish // rows
        if first_epoch < end_epoch:
            epochs.append((first_epoch, end_epoch))
        cut = [[begin, first_epoch * rows], [end_epoch * rows, finish]]
        parts.append(np.array([part for part in cut if part[0] < part[1]], np.int64).reshape(-1, 2))
    rest = np.concatenate(parts)
    return epochs, rest[np.argsort(rest[:, 0])]


def _depths(plus: Sequence[Numbers], minus: Sequence[Numbers] = ()) -> tuple[Numbers, Numbers]:
    """Return how often samples are in ranges, without those in others.

    Returns: int64[n], edges, strictly ascending; int64[n], how often the samples are from an edge
    to the next one: another number than before it, and at last 0.
    """
    parts = [np.zeros((0, 2), np.int64), *plus, *minus]
    counts = np.ones(sum(map(len, parts)), np.int64)
    counts[sum(map(len, plus)) :] = -1
    every = np.concatenate(parts)
    edges, place = np.unique(np.concatenate([every[:, 0], every[:, 1]]), return_inverse=True)
    change = np.zeros(edges.size, np.int64)
    np.add.at(change, place, np.concatenate([counts, -counts]))
    return edges[change != 0], np.cumsum(change[change != 0])
