"""Statistics of a feed: its position and what it has done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from tokenfeed.sampling.mixture_v1 import counts_at
from tokenfeed.stream.stream import Stream

from ..device.row_source import RowSource
from ..runtime.counters import WAIT_BOUNDS_SECONDS, Counters
from .history import History


class FeedPosition(NamedTuple):
    """The position of a feed.

    samples: index of the next sample of row 0 of rank 0; skipped samples count too.  epoch: of that
    sample; None for a mixture, or if the order has no epochs.
    """

    samples: int
    epoch: int | None


class SourceStats(NamedTuple):
    """What a dataset of a mixture has contributed.

    samples, tokens: in the batches of all ranks of the feed's history (tokens of x).  epochs:
    tokens divided by those of the rows of an epoch; None if the order has no epochs, or the rows
    are not known, as before the first batch.
    """

    samples: int
    tokens: int
    epochs: float | None


@dataclass(frozen=True, slots=True)
class WaitHistogram:
    """How long a feed waited for its batches. A batch that was ready counts as a wait of 0; a wait
    that ended without a batch counts too.

    bounds_seconds: upper bounds of the buckets.  counts: how many waits took at most each bound,
    and as the last value how many there were in all; so they never fall.  sum_seconds: of all
    waits.
    """

    bounds_seconds: tuple[float, ...] = WAIT_BOUNDS_SECONDS
    counts: tuple[int, ...] = (0,) * (len(WAIT_BOUNDS_SECONDS) + 1)
    sum_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a feed has done so far, on this rank.

    batches, tokens: delivered (tokens of x).  wait_seconds: time that `next` waited for data.
    reconnects: how often a stream broke and was resumed.  samples, epoch: as in FeedPosition, but
    epoch is None before the first batch.  sources: of a mixture, by the names of their datasets.

    wait_histogram: of waits that have ended; a wait that ended without a batch counts too.
    waiting_seconds: of the wait in progress, 0 if there is none.
    queue_depth_batches: whole batches that have arrived and wait.  queue_capacity_batches: how many
    may wait, which grows as the first ones are taken; 0 before the first batch, after `close`, and
    without a thread.
    rows_received, token_bytes_received: also of rows that were not delivered; bytes as they were
    sent, 2 or 4 a token.  frames_received, frame_bytes_received: messages of servers, which brought
    them; 0 with local files.  server: the address of the server that sent the last one, else "".
    reconnect_reasons: reconnects by the name of the error that broke the stream.
    """

    batches: int
    tokens: int
    wait_seconds: float
    reconnects: int
    samples: int
    epoch: int | None
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    wait_histogram: WaitHistogram = field(default_factory=WaitHistogram, repr=False)
    waiting_seconds: float = 0.0
    queue_depth_batches: int = 0
    queue_capacity_batches: int = 0
    rows_received: int = 0
    token_bytes_received: int = 0
    frames_received: int = 0
    frame_bytes_received: int = 0
    server: str = ""
    reconnect_reasons: Mapping[str, int] = field(default_factory=dict)


def counted(counters: Counters, rows: RowSource | None, batch_size: int) -> dict[str, Any]:
    """Return the fields of FeedStats that its streams have counted, by their names.

    rows: those being read now; None if there are none.  batch_size: rows of a batch.
    """
    # Each is read once: other threads change them.
    wait_seconds, since = counters.wait_seconds, counters.waiting_since
    return {
        "wait_seconds": wait_seconds,
        "reconnects": counters.reconnects,
        "wait_histogram": WaitHistogram(
            counts=tuple(accumulate(tuple(counters.wait_counts))), sum_seconds=wait_seconds
        ),
        "waiting_seconds": 0.0 if since is None else time.monotonic() - since,
        "queue_depth_batches": 0 if rows is None else rows.queued_rows // batch_size,
        "queue_capacity_batches": 0 if rows is None else rows.capacity_rows // batch_size,
        "rows_received": counters.rows,
        "token_bytes_received": counters.token_bytes,
        "frames_received": counters.frames,
        "frame_bytes_received": counters.frame_bytes,
        "server": counters.server,
        "reconnect_reasons": dict(counters.reconnect_reasons),
    }


def source_stats(
    stream: Stream, history: History, rows: Mapping[int, int]
) -> dict[str, SourceStats]:
    """Return what the batches of a history have of each dataset, by its name.

    stream: with the stages of all runs of the history.  rows: number of a source -> its rows per
    epoch at the last context length. If a source of a dataset is missing there, epochs of that
    dataset are None.
    """
    found: dict[str, SourceStats] = {}
    for run in history.runs:
        first = run.first_sample
        while first < run.end_sample:
            place = stream.place_of(first)
            stage, stage_end = stream.stages[place], stream.end_of(place)
            end = run.end_sample if stage_end is None else min(run.end_sample, stage_end)
            before, after = (counts_at(stage, stream.seed, sample) for sample in (first, end))
            for number, count in after.items():
                name, samples = stream.sources[number].dataset, count - before[number]
                known = found.get(name, SourceStats(0, 0, 0.0))
                epochs = None
                tokens = samples * stage.context_length
                if rows.get(number) and known.epochs is not None:
                    epochs = known.epochs + tokens / (rows[number] * stream.context_length)
                found[name] = SourceStats(known.samples + samples, known.tokens + tokens, epochs)
            first = end
    return found
