"""What the streams of a server do, counted frame by frame: for metrics, the status service, and the
log.

The only place where sent rows are counted. It knows nothing of Prometheus or of pages; both read
its numbers. A frame of 1 MiB takes a millisecond or so, and counting it a few microseconds.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tokenfeed.stream.position import Position
from tokenfeed.stream.stages import MIXTURE

from .frame_producer import FrameProducer, MadeFrame

_LOG = logging.getLogger("tokenfeed.server")

RATE_SECONDS = 10
"""Rates and shares are averages over this time."""
LINE_SECONDS = 60
"""Seconds of the rates that are drawn."""
STREAMS_KEPT = 4096
"""Beyond it, the streams without a call that moved longest ago are forgotten."""
FORGET_SECONDS = 600.0
"""A stream without a call is forgotten after this time."""
ENDED_SECONDS = 60.0
"""A stream without a call is logged as ended after this time."""

BOUNDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets of histograms, in seconds; a frame of 1 MiB takes about 0.001."""


class Labels(NamedTuple):
    """What frames are counted by; ("", "mixture-1") for frames of mixtures."""

    dataset: str
    order: str


class Histogram:
    """Durations by size.

    counts: of each bucket, and of all longer ones.  seconds: their sum.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        """Begin with none."""
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> Histogram:
        """Return a copy."""
        other = Histogram()
        other.counts, other.seconds = self.counts.copy(), self.seconds
        return other


@dataclass(slots=True)
class RowCounts:
    """Rows sent, and the bytes of their tokens, of one dataset in one order of its own."""

    rows: int = 0
    token_bytes: int = 0


@dataclass(slots=True)
class FrameCounts:
    """Frames of the streams of one order: of a dataset, or of all mixtures.

    frame_bytes: of whole messages.  opened, open: streams that began, and that have a call now.
    make_seconds: to make a frame, with the wait for its turn.  send_seconds: until its client took
    it.  first_seconds: from the first request of a stream to its first frame.
    """

    frames: int = 0
    frame_bytes: int = 0
    opened: int = 0
    open: int = 0
    make_seconds: Histogram = field(default_factory=Histogram)
    send_seconds: Histogram = field(default_factory=Histogram)
    first_seconds: Histogram = field(default_factory=Histogram)

    def copy(self) -> FrameCounts:
        """Return a copy."""
        histograms = (self.make_seconds, self.send_seconds, self.first_seconds)
        return FrameCounts(
            self.frames,
            self.frame_bytes,
            self.opened,
            self.open,
            *(histogram.copy() for histogram in histograms),
        )


class Caller(NamedTuple):
    """Who calls.  address: of the connection, with its port.  client_name: that it gave itself."""

    address: str
    client_name: str


class StreamKey(NamedTuple):
    """What tells streams apart.

    address, client_name: those of Caller.  dataset: "" of a mixture, whose stages may change.
    """

    address: str
    client_name: str
    rank: int
    world_size: int
    dataset: str
    order: str
    seed: int
    context_length: int


class _Reading(NamedTuple):
    """Totals of a stream at one time."""

    at: float
    tokens: int
    make_seconds: float
    send_seconds: float


@dataclass(eq=False, slots=True)
class Stream:
    """The calls of one rank of a feed over one connection.

    datasets, batch_size: of its latest call.  next_sample: behind the last row sent.  began_at,
    moved_at: when it began, and when a frame of it was sent; by time.monotonic.  calls: open now;
    of these, making and sending make and send a frame.  make_seconds: time in which some call made
    a frame; send_seconds: time in which none did, and some had one ready.  since: when these two
    were last added to.  readings: of the last seconds.  has_ended: whether this was logged.
    """

    key: StreamKey
    began_at: float
    moved_at: float
    since: float
    datasets: Sequence[str] = ()
    batch_size: int = 0
    next_sample: int = 0
    rows: int = 0
    calls: int = 0
    making: int = 0
    sending: int = 0
    make_seconds: float = 0.0
    send_seconds: float = 0.0
    readings: deque[_Reading] = field(default_factory=lambda: deque(maxlen=RATE_SECONDS + 1))
    has_ended: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of x that were sent."""
        return self.rows * self.key.context_length

    def pass_time(self, now: float) -> None:
        """Add the time since the last call of this to what the stream did in it."""
        if self.making:
            self.make_seconds += now - self.since
        elif self.sending:
            self.send_seconds += now - self.since
        self.since = now

    def read(self, now: float) -> None:
        """Keep a reading."""
        self.pass_time(now)
        self.readings.append(_Reading(now, self.tokens, self.make_seconds, self.send_seconds))


class StreamRates(NamedTuple):
    """Averages over the last seconds.

    tokens_per_second.  waits_for_server, waits_for_client: shares of the time, in [0, 1].
    """

    tokens_per_second: float
    waits_for_server: float
    waits_for_client: float


class StreamSeen(NamedTuple):
    """A stream at one time; the fields are those of Stream."""

    key: StreamKey
    datasets: Sequence[str]
    batch_size: int
    next_sample: int
    rows: int
    tokens: int
    calls: int
    age_seconds: float
    idle_seconds: float
    rates: StreamRates


class Totals(NamedTuple):
    """What all streams did since the start.

    rows: by dataset and the order of the rows.  frames: by dataset and the order of the streams.
    """

    rows: dict[Labels, RowCounts]
    frames: dict[Labels, FrameCounts]


class Seconds:
    """Totals at the end of each of the last seconds, for rates."""

    def __init__(self) -> None:
        """Begin with none."""
        self._totals: deque[tuple[float, int]] = deque(maxlen=LINE_SECONDS + 1)

    def add(self, now: float, total: int) -> None:
        """Add a total."""
        self._totals.append((now, total))

    def each(self) -> list[int]:
        """Return what was added to the total in each second, the latest one last."""
        totals = [total for _, total in self._totals]
        return [after - before for before, after in itertools.pairwise(totals)]

    def rate(self, now: float, total: int) -> float:
        """Return the average of the last RATE_SECONDS, per second."""
        recent = list(self._totals)[-RATE_SECONDS:]
        if not recent or now <= recent[0][0]:
            return 0.0
        return (total - recent[0][1]) / (now - recent[0][0])


class Activity:
    """Counts what streams do. All methods may be called from several threads at once."""

    def __init__(self) -> None:
        """Begin without streams."""
        self._lock = threading.Lock()  # guards all that follows, and the streams
        self._streams: OrderedDict[StreamKey, Stream] = OrderedDict()
        """The one whose last call began longest ago comes first."""
        self._rows: dict[Labels, RowCounts] = {}
        self._frames: dict[Labels, FrameCounts] = {}
        self._frame_seconds = Seconds()
        self._dataset_seconds: dict[str, tuple[Seconds, Seconds]] = {}

    @contextmanager
    def call(
        self, producer: FrameProducer, caller: Caller, began_at: float
    ) -> Iterator[CallActivity]:
        """Count a GetBatch call for the duration of the with block.

        producer: makes its frames.  began_at: when its request arrived, by time.monotonic.
        """
        opened = self._opened(producer, caller, began_at)
        call = CallActivity(self._lock, producer.request.position, *opened)
        try:
            yield call
        finally:
            call.end()

    def tick(self) -> None:
        """Keep the totals of this second, and forget old streams; to be called once a second."""
        now = time.monotonic()
        ended = []
        with self._lock:
            self._frame_seconds.add(now, sum(each.frame_bytes for each in self._frames.values()))
            for dataset, (rows, token_bytes) in self._by_dataset().items():
                seconds = self._dataset_seconds.setdefault(dataset, (Seconds(), Seconds()))
                seconds[0].add(now, rows)
                seconds[1].add(now, token_bytes)
            for stream in list(self._streams.values()):
                stream.read(now)
                if stream.calls:
                    continue
                if now - stream.moved_at > FORGET_SECONDS:
                    del self._streams[stream.key]
                elif now - stream.moved_at > ENDED_SECONDS and not stream.has_ended:
                    stream.has_ended = True
                    ended.append(stream)
        for stream in ended:
            _log_ended(stream, "idle")

    def log_open_streams(self) -> None:
        """Log those that have not ended, at the end of the server."""
        with self._lock:
            left = [stream for stream in self._streams.values() if not stream.has_ended]
        for stream in left:
            _log_ended(stream, "shutdown")

    def totals(self) -> Totals:
        """Return a copy of the counts."""
        with self._lock:
            rows = {
                labels: RowCounts(each.rows, each.token_bytes)
                for labels, each in self._rows.items()
            }
            return Totals(rows, {labels: each.copy() for labels, each in self._frames.items()})

    def streams(self, most: int) -> tuple[list[StreamSeen], int]:
        """Return the streams that moved last, at most so many, and how many others there are."""
        now = time.monotonic()
        with self._lock:
            found = sorted(self._streams.values(), key=lambda stream: -stream.moved_at)
            return [_seen(stream, now) for stream in found[:most]], max(0, len(found) - most)

    def sent_of(self, dataset: str) -> tuple[int, int]:
        """Return the rows of a dataset that were sent, and the bytes of their tokens."""
        with self._lock:
            return self._by_dataset().get(dataset, (0, 0))

    def line(self) -> list[int]:
        """Return the bytes of messages in each of the last seconds."""
        with self._lock:
            return self._frame_seconds.each()

    def dataset_rates(self, dataset: str) -> tuple[float, float, list[int]]:
        """Return the rates of rows and of token bytes, and token bytes in each second."""
        now = time.monotonic()
        with self._lock:
            if dataset not in self._dataset_seconds:
                return 0.0, 0.0, []
            rows, token_bytes = self._by_dataset().get(dataset, (0, 0))
            of_rows, of_bytes = self._dataset_seconds[dataset]
            return of_rows.rate(now, rows), of_bytes.rate(now, token_bytes), of_bytes.each()

    def _by_dataset(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for labels, each in self._rows.items():
            rows, token_bytes = found.get(labels.dataset, (0, 0))
            found[labels.dataset] = rows + each.rows, token_bytes + each.token_bytes
        return found

    def _opened(
        self, producer: FrameProducer, caller: Caller, began_at: float
    ) -> tuple[Stream, FrameCounts, list[RowCounts]]:
        """Return the stream of a call that begins, and what it is counted in."""
        request, names = producer.request, producer.datasets
        spec, position = request.spec, request.position
        is_mixture = spec.mixture is not None
        source = spec.sources[0]
        labels = Labels("", MIXTURE) if is_mixture else Labels(names[0], source.order.NAME)
        key = StreamKey(
            *caller,
            position.rank,
            position.world_size,
            labels.dataset,
            labels.order,
            0 if is_mixture else source.seed,
            spec.context_length,
        )
        first_sample = position.sample_of(request.first_row)
        now = time.monotonic()
        with self._lock:
            counts = self._frames.setdefault(labels, FrameCounts())
            rows = [
                self._rows.setdefault(Labels(name, each.order.NAME), RowCounts())
                for name, each in zip(names, spec.sources, strict=True)
            ]
            stream = self._streams.get(key)
            is_new = stream is None or stream.has_ended
            if stream is None:
                stream = Stream(key, began_at, began_at, now)
                counts.opened += 1
            stream.has_ended = False
            stream.pass_time(now)
            stream.datasets = list(dict.fromkeys(names))
            stream.batch_size = position.batch_size
            stream.next_sample = first_sample
            counts.open += not stream.calls
            stream.calls += 1
            stream.making += 1
            self._streams[key] = stream
            self._streams.move_to_end(key)
            self._forget_beyond(STREAMS_KEPT)
        if is_new:
            _log_opened(stream, first_sample)
        return stream, counts, rows

    def _forget_beyond(self, most: int) -> None:
        """Forget streams without a call, if there are more than so many."""
        if len(self._streams) <= most:
            return
        # Not a slice of a list: that would read all of them at each call.
        oldest = itertools.islice(self._streams.items(), len(self._streams) - most)
        for key, stream in list(oldest):
            if not stream.calls:
                del self._streams[key]


class CallActivity:
    """What one call does: it makes a frame, sends it, makes the next one."""

    def __init__(
        self,
        lock: threading.Lock,
        position: Position,
        stream: Stream,
        counts: FrameCounts,
        rows: Sequence[RowCounts],
    ) -> None:
        """Begin, making the first frame.  lock: guards the others.  position: of the request.
        rows: of each source.
        """
        self._lock = lock
        self._position = position
        self._stream = stream
        self._counts = counts
        self._rows = rows
        self._is_sending = False
        self._since = time.monotonic()

    def made(self) -> None:
        """A frame was made, and waits for its client."""
        now = time.monotonic()
        stream, counts = self._stream, self._counts
        with self._lock:
            stream.pass_time(now)
            stream.making -= 1
            stream.sending += 1
            counts.make_seconds.add(now - self._since)
            if not stream.rows:
                counts.first_seconds.add(now - stream.began_at)
        self._is_sending, self._since = True, now

    def sent(self, frame: MadeFrame) -> None:
        """Its client took it; the next one is made."""
        now = time.monotonic()
        stream, counts = self._stream, self._counts
        next_sample = self._position.sample_of(frame.end_row)
        by_source = [frame.row_count]
        if len(self._rows) > 1:
            by_source = np.bincount(frame.row_source, minlength=len(self._rows)).tolist()
        with self._lock:
            stream.pass_time(now)
            stream.sending -= 1
            stream.making += 1
            stream.moved_at = now
            stream.rows += frame.row_count
            stream.next_sample = next_sample
            counts.frames += 1
            counts.frame_bytes += len(frame.message)
            counts.send_seconds.add(now - self._since)
            for each, rows in zip(self._rows, by_source, strict=True):
                each.rows += rows
                each.token_bytes += rows * frame.row_bytes
        self._is_sending, self._since = False, now

    def end(self) -> None:
        """The call ends, at any point."""
        with self._lock:
            stream = self._stream
            stream.pass_time(time.monotonic())
            if self._is_sending:
                stream.sending -= 1
            else:
                stream.making -= 1
            stream.calls -= 1
            self._counts.open -= not stream.calls


def _seen(stream: Stream, now: float) -> StreamSeen:
    stream.pass_time(now)
    return StreamSeen(
        stream.key,
        stream.datasets,
        stream.batch_size,
        stream.next_sample,
        stream.rows,
        stream.tokens,
        stream.calls,
        now - stream.began_at,
        now - stream.moved_at,
        _rates(stream, now),
    )


def _rates(stream: Stream, now: float) -> StreamRates:
    """Return the averages since the oldest reading, or since the stream began."""
    first = _Reading(stream.began_at, 0, 0.0, 0.0)
    if len(stream.readings) == stream.readings.maxlen:
        first = stream.readings[0]
    seconds = now - first.at
    if seconds <= 0:
        return StreamRates(0.0, 0.0, 0.0)
    return StreamRates(
        (stream.tokens - first.tokens) / seconds,
        min(1.0, (stream.make_seconds - first.make_seconds) / seconds),
        min(1.0, (stream.send_seconds - first.send_seconds) / seconds),
    )


def _log_opened(stream: Stream, first_sample: int) -> None:
    key = stream.key
    _LOG.info(
        "stream opened peer=%s client=%r dataset=%s order=%s context_length=%d batch_size=%d "
        "rank=%d world_size=%d first_sample=%d",
        key.address,
        key.client_name,
        ",".join(stream.datasets[:8]),
        key.order,
        key.context_length,
        stream.batch_size,
        key.rank,
        key.world_size,
        first_sample,
    )


def _log_ended(stream: Stream, reason: str) -> None:
    key = stream.key
    seconds = stream.moved_at - stream.began_at
    _LOG.info(
        "stream ended peer=%s client=%r rank=%d rows=%d seconds=%.1f tokens_per_second=%.0f "
        "next_sample=%d reason=%s",
        key.address,
        key.client_name,
        key.rank,
        stream.rows,
        seconds,
        stream.tokens / seconds if seconds > 0 else 0,
        stream.next_sample,
        reason,
    )
