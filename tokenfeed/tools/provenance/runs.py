"""From the batches of a run to samples, and back. Pure.

A history (client/feed/history.py) tells which samples the batches of all ranks had. Step n is the
(n+1)-th batch of the run: a checkpoint at step n has the steps [0, n). The stream of a run is cut
into segments, each of which one request can ask for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import History, Run, history_of
from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position
from tokenfeed.stream.stream import Stream

Numbers = npt.NDArray[np.int64]

_LAST = SAMPLE_END - 1
"""The greatest int64."""


class StepRow(NamedTuple):
    """A row of a step.  sample: None behind the end of an epoch, or of a context length: such a row
    is padding, and has no target.
    """

    rank: int
    row: int
    sample: int | None


class StepRows(NamedTuple):
    """Rows of one step, one rank after the other.

    run: the run of batches that the step belongs to.  row_count: how many rows there are, which may
    be more than fit into memory.
    """

    run: Run
    row_count: int
    rows: Iterator[StepRow]


def rows_of_step(
    history: History, step: int, rank: int | None = None, row: int | None = None
) -> StepRows:
    """Return the rows of a step: of one rank or of all, one row of each or all.

    Raises: InvalidRequest if the history does not have the step, or the step not the rank or row.
    """
    run = _run_of(history, step)
    ranks = _some("rank", rank, run.world_size, f"the world size of step {step}")
    rows = _some("row", row, run.batch_size, f"the batch size of step {step}")
    first = run.first_sample + (step - run.first_batch) * run.batch_size * run.world_size

    def found() -> Iterator[StepRow]:
        for rank, row in ((rank, row) for rank in ranks for row in rows):
            sample = first + rank * run.batch_size + row
            yield StepRow(rank, row, sample if sample < run.end_sample else None)

    return StepRows(run, len(ranks) * len(rows), found())


def _some(name: str, chosen: int | None, count: int, what: str) -> range:
    """Return the ranks or rows of a step that are chosen: one, or all.  what: the count is."""
    if chosen is None:
        return range(count)
    if not 0 <= chosen < count:
        raise InvalidRequest(name, f"{chosen} is not in [0, {count - 1}]: {what} was {count}")
    return range(chosen, chosen + 1)


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


def places_of(history: History, samples: Numbers) -> Numbers:
    """Return where samples were delivered; a sample may have several places, or none.

    samples: int64[n], in any order.
    Returns: int64[4, m]: the index of the sample in those that were asked for, ascending; step,
    rank and row. The steps of a sample ascend.
    """
    by_sample = np.argsort(samples, kind="stable")
    ascending = samples[by_sample]
    found = [_places_in(run, by_sample, ascending) for run in history.runs]
    places = np.concatenate([np.zeros((4, 0), np.int64), *found], axis=1)
    return places[:, np.lexsort((places[1], places[0]))]


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


def ranges_of(history: History) -> Numbers:
    """Return the samples of each run: int64[n, 2]."""
    ranges = [[run.first_sample, min(run.end_sample, _LAST)] for run in history.runs]
    return np.array(ranges, dtype=np.int64).reshape(-1, 2)


def future(
    history: History,
    first_sample: int,
    stream: Stream,
    *,
    batch_size: int | None = None,
    world_size: int | None = None,
) -> History:
    """Return what is to come, up to sample 2^63, as a history of one run for each context length:
    for `rows_of_step` and `places_of`. Batches keep their tokens. The history ends before a context
    length of which these are no whole rows.

    history: before it.  first_sample: where the run goes on.  stream: of the run.  batch_size,
    world_size: at first; by default those of the last batch.
    Raises: InvalidRequest if they are not given and there is no batch; SamplesExhausted at 2^63.
    """
    if first_sample >= SAMPLE_END:
        raise SamplesExhausted("state", "is at sample 2^63, the end of its run: no step is to come")
    last, lengths = history.last, _lengths(stream, first_sample)
    if batch_size is None or world_size is None:
        if last is None:
            problem = "is missing; the state has no batch that tells how large the next ones are"
            raise InvalidRequest("batch_size" if batch_size is None else "world_size", problem)
        world_size = last.world_size if world_size is None else world_size
    tokens = 0 if batch_size is None else batch_size * lengths[0][1]
    if batch_size is None and last is not None:
        tokens = last.batch_size * _lengths(stream, last.end_sample - 1)[0][1]
    runs, first_batch = list[Run](), last.end_batch if last else 0
    for (begin, length), (end, _) in pairwise([*lengths, (SAMPLE_END, 0)]):
        if tokens % length and runs:
            break
        if tokens % length:
            problem = f"is missing; {tokens} tokens of the last batch are no whole rows of {length}"
            raise InvalidRequest("batch_size", problem)
        Position(begin, tokens // length, 0, world_size)  # checks them
        runs.append(Run(first_batch, begin, end, tokens // length, world_size))
        first_batch = runs[-1].end_batch
    return history_of(runs)


def _lengths(stream: Stream, sample: int) -> list[tuple[int, int]]:
    """Return (sample, context length from there on) of a sample, and of each later one with another
    context length.
    """
    here = stream.place_of(sample)
    found = [(sample, stream.stages[here].context_length)]
    for stage in stream.stages[here + 1 :]:
        if stage.context_length != found[-1][1]:
            found.append((stage.first_sample, stage.context_length))
    return found


def assumed(batch_size: int, world_size: int) -> tuple[History, str]:
    """Return the history of a run that has never skipped, resumed, or changed batch size or ranks,
    and what was assumed for it, in words.

    Raises: InvalidRequest.
    """
    Position(0, batch_size, 0, world_size)  # checks them
    history = History((), Run(0, 0, SAMPLE_END, batch_size, world_size))
    ranks = f"{world_size} ranks" if world_size > 1 else "1 rank"
    words = f"step 0 began at sample 0, and every step had {batch_size} rows on each of {ranks}"
    return history, f"{words}: no skip, no other batch size, no other ranks"


class Segment(NamedTuple):
    """The samples [first_sample, end_sample) of a stream, which one request can ask for.

    stream: as of `Stream.at`.
    """

    stream: Stream
    first_sample: int
    end_sample: int


def segments(stream: Stream, first_sample: int, end_sample: int) -> list[Segment]:
    """Return the samples [first_sample, end_sample) of a stream as segments, in order.

    Raises: InvalidRequest if a state does not have the stage of the first one any more.
    """
    if first_sample < (begin := stream.stages[0].first_sample):
        problem = f"{first_sample} is of a stage that the state has dropped; it begins with {begin}"
        raise InvalidRequest("sample", problem)
    found: list[Segment] = []
    while first_sample < end_sample:
        part, until = stream.at(first_sample)
        end = end_sample if until is None else min(until, end_sample)
        found.append(Segment(part, first_sample, end))
        first_sample = end
    return found
