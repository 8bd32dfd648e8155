"""From the batches of a run to samples, and back. Pure.

A history (client/feed/history.py) tells which samples the batches of all ranks had. Step n is the
(n+1)-th batch of the run: a checkpoint at step n has the steps [0, n). The stream of a run is cut
into segments, each of which one request can ask for.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.sampling.own_samples import merged
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import Mixture, StreamSpec
from tokenfeed.wire.request import Expected

from ..feed.history import History, Run
from ..feed.mixture.counts import stages_of
from ..feed.mixture.schedule import sources_of

Numbers = npt.NDArray[np.int64]

_LAST = SAMPLE_END - 1
"""The greatest int64."""
_ROWS_MAX = 1 << 22
"""Of a step, at once: 100 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows of one step, by rank and row.

    step: its number in the run.  run: the run of batches that it belongs to.  rank, row, sample:
    int64[n], one rank after the other.  is_padding: bool[n], rows behind the end of an epoch, which
    have no target and no sample.
    """

    step: int
    run: Run
    rank: Numbers
    row: Numbers
    sample: Numbers
    is_padding: npt.NDArray[np.bool_]


def rows_of_step(
    history: History, step: int, rank: int | None = None, row: int | None = None
) -> StepRows:
    """Return the rows of a step: of one rank or of all, one row of each or all.

    Raises: InvalidRequest if the history does not have the step, or the step not the rank or row.
    """
    run = _run_of(history, step)
    ranks = _some("rank", rank, run.world_size)
    rows = _some("row", row, run.batch_size)
    if len(ranks) * len(rows) > _ROWS_MAX:
        problem = f"is missing; step {step} has {len(ranks) * len(rows)} rows"
        raise InvalidRequest("rank", f"{problem}, and {_ROWS_MAX} at once are the maximum")
    rank_of, row_of = (
        each.ravel() for each in np.meshgrid(*map(_numbers, (ranks, rows)), indexing="ij")
    )
    first = run.first_sample + (step - run.first_batch) * run.batch_size * run.world_size
    since = rank_of * run.batch_size + row_of
    return StepRows(
        step,
        run,
        rank_of,
        row_of,
        first + np.minimum(since, _LAST - first),
        since >= min(run.end_sample - first, _LAST),
    )


def _some(name: str, chosen: int | None, count: int) -> range:
    """Return the ranks or rows of a step that are chosen: one, or all."""
    if chosen is None:
        return range(count)
    require_range(name, chosen, 0, count)
    return range(chosen, chosen + 1)


def _numbers(values: range) -> Numbers:
    return np.arange(values.start, values.stop, dtype=np.int64)


def _run_of(history: History, step: int) -> Run:
    """Return the run that has a step.  Raises: InvalidRequest."""
    runs = history.runs
    if not runs:
        raise InvalidRequest("step", f"{step} is unknown: the history has no step yet")
    place = bisect_right(runs, step, key=lambda run: run.first_batch) - 1
    if place < 0 or step >= runs[-1].end_batch:
        problem = f"{step} is not in the history, which has the steps {history.first_batch} to"
        dropped = "; its oldest runs were dropped" if 0 <= step < history.first_batch else ""
        raise InvalidRequest("step", f"{problem} {runs[-1].end_batch - 1}{dropped}")
    return runs[place]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where samples were delivered; a sample may have several places, or none.

    index: int64[m], of the sample in those that were asked for, ascending.  step, rank, row:
    int64[m]; the steps of a sample ascend.
    """

    index: Numbers
    step: Numbers
    rank: Numbers
    row: Numbers


def places_of(history: History, parts: StreamParts, samples: Numbers) -> Places:
    """Return where samples of a stream were delivered.

    parts: of the runs in which to look.  samples: int64[n], in any order.
    """
    by_sample = np.argsort(samples, kind="stable")
    ascending = samples[by_sample]
    # Runs share their streams, and a stream may have a thousand stages to compare.
    same = {
        id(spec)
        for spec in {id(one.spec): one.spec for one in history.runs}.values()
        if spec == parts
    }
    found = [_places_in(run, by_sample, ascending) for run in history.runs if id(run.spec) in same]
    index, step, rank, row = np.concatenate([np.zeros((4, 0), np.int64), *found], axis=1)
    order = np.lexsort((step, index))
    return Places(index[order], step[order], rank[order], row[order])


def _places_in(run: Run, by_sample: Numbers, ascending: Numbers) -> Numbers:
    """Return index, step, rank and row of the samples that a run has: int64[4, n].

    by_sample: int64[n], indices of samples.  ascending: int64[n], these samples.
    """
    first = int(np.searchsorted(ascending, run.first_sample))
    last = int(np.searchsorted(ascending, run.end_sample - 1, side="right"))
    since = ascending[first:last] - run.first_sample
    batch, within = np.divmod(since, run.batch_size * run.world_size)
    rank, row = np.divmod(within, run.batch_size)
    return np.stack([by_sample[first:last], run.first_batch + batch, rank, row])


def streams_of(history: History) -> dict[StreamParts, Numbers]:
    """Return the streams of a history, and of each the samples that were delivered: int64[n, 2],
    ascending, merged.
    """
    return {parts: merged([ranges_of(runs)]) for parts, runs in by_stream(history).items()}


def by_stream(history: History) -> dict[StreamParts, list[Run]]:
    """Return the runs of each stream, in the order of the first ones."""
    streams: dict[StreamParts, list[Run]] = {}
    for run in history.runs:
        streams.setdefault(run.spec, []).append(run)
    return streams


def ranges_of(runs: list[Run]) -> Numbers:
    """Return the samples of each run: int64[n, 2]."""
    ranges = [[run.first_sample, min(run.end_sample, _LAST)] for run in runs]
    return np.array(ranges, dtype=np.int64).reshape(-1, 2)


def future(
    history: History,
    parts: StreamParts,
    first_sample: int,
    *,
    batch_size: int | None = None,
    world_size: int | None = None,
) -> History:
    """Return what is to come, up to sample 2^63, as a history of one run: for `rows_of_step` and
    `places_of`.

    history: before it.  parts, first_sample: of a state.  batch_size, world_size: by default those
    of the last batch.
    Raises: InvalidRequest if they are not given and there is no batch; SamplesExhausted at 2^63.
    """
    if first_sample >= SAMPLE_END:
        raise SamplesExhausted("state", "is at sample 2^63, the end of its run: no step is to come")
    last = history.last
    if batch_size is None or world_size is None:
        if last is None:
            problem = "is missing; the state has no batch that tells how large the next ones are"
            raise InvalidRequest("batch_size" if batch_size is None else "world_size", problem)
        batch_size = last.batch_size if batch_size is None else batch_size
        world_size = last.world_size if world_size is None else world_size
    return _to_the_end(last.end_batch if last else 0, parts, first_sample, batch_size, world_size)


class Assumed(NamedTuple):
    """A history without a state, and what was assumed for it, in words."""

    history: History
    words: str


def assumed(parts: StreamParts, batch_size: int, world_size: int, first_sample: int = 0) -> Assumed:
    """Return the history of a run that has never skipped, resumed, or changed batch size or ranks.

    first_sample: of row 0 of rank 0 in step 0.  Raises: InvalidRequest, SamplesExhausted.
    """
    history = _to_the_end(0, parts, first_sample, batch_size, world_size)
    ranks = f"{world_size} ranks" if world_size > 1 else "1 rank"
    words = (
        f"step 0 began at sample {first_sample}, and every step had {batch_size} rows on each of"
    )
    return Assumed(history, f"{words} {ranks}: no skip, no other batch size, no other ranks")


def _to_the_end(
    first_batch: int, parts: StreamParts, first_sample: int, batch_size: int, world_size: int
) -> History:
    """Return a history of one run up to sample 2^63."""
    Position(first_sample, batch_size, 0, world_size)  # checks them
    run = Run(first_batch, first_sample, SAMPLE_END, batch_size, world_size, parts)
    return History((), run)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive samples of a stream that one request can ask for.

    spec: of one dataset, or of one stage of a mixture, with the redactions in force.  first_sample,
    end_sample: of the stream.  expected: what a server compares.
    """

    spec: StreamSpec
    first_sample: int
    end_sample: int
    expected: Expected


def segments(
    parts: StreamParts, first_sample: int, end_sample: int, dataset: str = ""
) -> list[Segment]:
    """Return the samples [first_sample, end_sample) of a stream as segments, in order.

    dataset: its name, for a stream of one dataset, which does not have it.
    Raises: InvalidRequest for an order of a later release.
    """
    spec, chain = _stream(parts, dataset)
    found: list[Segment] = []
    while first_sample < end_sample:
        segment = _segment(spec, chain, first_sample, end_sample)
        found.append(segment)
        first_sample = segment.end_sample
    return found


def _segment(spec: StreamSpec, chain: tuple[bytes, ...], first: int, end: int) -> Segment:
    """Return the segment at a sample, which ends at the given end or before."""
    place = 0 if spec.mixture is None else spec.mixture.stage_of(first)
    spec, until = spec.part_at(first, lambda place: spec.of_stage(place, chain[place]))
    end = end if until is None else min(end, until)
    expected = Expected(spec.redacted(chain[place + 1]), spec.identity_version)
    return Segment(spec, first, end, expected)


@lru_cache(16)
def _stream(parts: StreamParts, dataset: str) -> tuple[StreamSpec, tuple[bytes, ...]]:
    """Return a stream, and its chain of identities."""
    spec = spec_of(parts, dataset)
    return spec, tuple(spec.chain([source.corpus for source in parts.each_source]))


def spec_of(parts: StreamParts, dataset: str = "") -> StreamSpec:
    """Return the stream of a state.

    dataset: as for `segments`.  Raises: InvalidRequest for an order of a later release.
    """
    used = [source.order for source in parts.sources] if parts.stages else [parts.order]
    for name in used:
        if name not in orders.ORDERS:
            problem = f"{name!r} is unknown to this release; upgrade tokenfeed"
            raise InvalidRequest("state.order", problem)
    redactions = tuple(
        Redaction(each.first_sample, each.source, bytes.fromhex(each.list_hash))
        for each in parts.redactions
    )
    if parts.stages:
        mixture = Mixture(parts.seed, stages_of(parts))
        sources = sources_of(parts)
        return StreamSpec(parts.context_length, sources, mixture, redactions=redactions)
    return StreamSpec.of_dataset(
        dataset,
        orders.find(parts.order),
        parts.seed,
        parts.context_length,
        long_documents=parts.long_documents,
        redactions=redactions,
    )
