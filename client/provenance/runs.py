"""From the batches of a run to samples, and back. Pure.

A history (client/feed/history.py) tells which samples the batches of all ranks had. Step n is the
(n+1)-th batch of the run: a checkpoint at step n has the steps [0, n). The stream of a run is cut
into segments, each of which one request can ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.stream.spec import StreamParts, StreamSpec
from tokenfeed.wire.request import Expected

from ..feed.history import History, Run

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows of one step, by rank and row.

    step: its number in the run.  run: the run of batches that it belongs to.  rank, row, sample:
    int64[n].  is_padding: bool[n], rows behind the end of an epoch, which have no target; their
    sample is that of another epoch.
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
    raise NotImplementedError


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
    raise NotImplementedError


def streams_of(history: History) -> dict[StreamParts, Numbers]:
    """Return the streams of a history, and of each the samples that were delivered: int64[n, 2],
    ascending, merged.
    """
    raise NotImplementedError


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
    Raises: InvalidRequest if they are not given and there is no batch.
    """
    raise NotImplementedError


class Assumed(NamedTuple):
    """A history without a state, and what was assumed for it, in words."""

    history: History
    words: str


def assumed(parts: StreamParts, batch_size: int, world_size: int, first_sample: int = 0) -> Assumed:
    """Return the history of a run that has never skipped, resumed, or changed batch size or ranks.

    first_sample: of row 0 of rank 0 in step 0.  Raises: InvalidRequest, SamplesExhausted.
    """
    raise NotImplementedError


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
    raise NotImplementedError
