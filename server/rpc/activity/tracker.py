"""Activity: every call of rows reports here what it does."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import MIXTURE
from tokenfeed.v1 import status_pb2 as pb
from tokenfeed.wire.request import NO_HINTS, Hints, SampleList

from ..frame_producer import EncodedFrame, FrameProducer
from .counts import LINE_SECONDS, FrameCounts, Labels, RowCounts, Seconds, Sent, Totals
from .streams import Caller, Stream, StreamKey, log_ended, log_opened

STREAMS_KEPT = 4096
"""Beyond it, streams without a call are forgotten, those first whose last call is oldest."""
FORGET_SECONDS = 600.0
"""A stream without a call is forgotten after this time."""
ENDED_SECONDS = 60.0
"""A stream without a call is logged as ended after this time."""


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
        self,
        producer: FrameProducer,
        caller: Caller,
        began_at: float,
        hints: Hints = NO_HINTS,
    ) -> Iterator[CallActivity]:
        """Count a call of rows for the duration of the with block.

        producer: makes its frames.  began_at: when its request arrived, by time.monotonic.  hints:
        of its request. The rows of a tool are counted, but it is no stream.
        """
        opened = self._opened(producer, caller, began_at, hints)
        call = CallActivity(self._lock, producer.reader.request.position, *opened)
        is_answered = False
        try:
            yield call
            is_answered = True
        finally:
            # Also behind a call that was cancelled: it may end behind the goodbye.
            ended = call.end(is_last=is_answered and hints.is_last)
            if ended is not None:
                log_ended(ended, "finished")

    def tick(self) -> None:
        """Keep the totals of this second, and forget old streams; to be called once a second."""
        now = time.monotonic()
        ended = []
        with self._lock:
            for dataset, (rows, token_bytes) in self._by_dataset().items():
                self._dataset_seconds[dataset] = of_rows, of_bytes = self._seconds_of(dataset)
                of_rows.add(now, rows)
                of_bytes.add(now, token_bytes)
            self._frame_seconds.add(now, self._frame_bytes())
            for stream in list(self._streams.values()):
                if stream.calls or now - stream.moved_at < LINE_SECONDS:
                    stream.read(now)
                if stream.calls:
                    continue
                if now - stream.active_at > ENDED_SECONDS and not stream.has_ended:
                    stream.has_ended = True
                    ended.append(stream)
                if now - stream.active_at > FORGET_SECONDS:
                    del self._streams[stream.key]
        for stream in ended:
            log_ended(stream, "idle")

    def log_open_streams(self) -> None:
        """Log those that have not ended, at the end of the server."""
        with self._lock:
            left = [stream for stream in self._streams.values() if not stream.has_ended]
        for stream in left:
            log_ended(stream, "shutdown" if stream.calls else "idle")

    def totals(self) -> Totals:
        """Return a copy of the counts."""
        with self._lock:
            rows = {
                labels: RowCounts(each.rows, each.token_bytes)
                for labels, each in self._rows.items()
            }
            return Totals(rows, {labels: each.copy() for labels, each in self._frames.items()})

    def streams(self, most: int) -> tuple[list[pb.StreamStatus], int]:
        """Return streams, and how many others there are.  most: to return. Those with a call come
        first, of these the one that moved longest ago; then those without, the latest first; at
        last those that have ended, the latest first.
        """
        now = time.monotonic()
        with self._lock:
            found = sorted(
                self._streams.values(),
                key=lambda one: (
                    (0, one.moved_at) if one.calls else (1 + one.has_ended, -one.moved_at)
                ),
            )
            return [stream.status(now) for stream in found[:most]], max(0, len(found) - most)

    def sent_rates(self) -> tuple[float, list[int]]:
        """Return the bytes of messages per second, over the last seconds, and in each of them."""
        now = time.monotonic()
        with self._lock:
            seconds = self._frame_seconds
            return seconds.rate(now, self._frame_bytes()), seconds.each()

    def sent_of(self, dataset: str) -> Sent:
        """Return what was sent of a dataset."""
        now = time.monotonic()
        with self._lock:
            rows, token_bytes = self._by_dataset().get(dataset, (0, 0))
            of_rows, of_bytes = self._seconds_of(dataset)
            rates = of_rows.rate(now, rows), of_bytes.rate(now, token_bytes)
            return Sent(rows, token_bytes, *rates, of_bytes.each())

    def _seconds_of(self, dataset: str) -> tuple[Seconds, Seconds]:
        """Return the rows and bytes of a dataset; 0 in all seconds before its first ones."""
        none = self._frame_seconds.of_nothing
        return self._dataset_seconds.get(dataset) or (none(), none())

    def _frame_bytes(self) -> int:
        return sum(each.frame_bytes for each in self._frames.values())

    def _by_dataset(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for labels, each in self._rows.items():
            rows, token_bytes = found.get(labels.dataset, (0, 0))
            found[labels.dataset] = rows + each.rows, token_bytes + each.token_bytes
        return found

    def _opened(
        self, producer: FrameProducer, caller: Caller, began_at: float, hints: Hints
    ) -> tuple[Stream, FrameCounts, list[RowCounts]]:
        """Return the stream of a call that begins, and what it is counted in."""
        request, names = producer.reader.request, producer.datasets
        stream, position = request.stream, request.position
        order = stream.order_name
        dataset, seed = ("", 0) if order == MIXTURE else (names[0], stream.source.seed)
        labels = Labels(dataset, order)
        rank = position.rank if isinstance(position, Position) else 0
        key = StreamKey(
            *caller, rank, position.world_size, dataset, order, seed, stream.context_length
        )
        now = time.monotonic()
        with self._lock:
            counts = self._frames.setdefault(labels, FrameCounts())
            rows = [
                self._rows.setdefault(Labels(name, each.order.NAME), RowCounts())
                for name, each in zip(names, stream.sources, strict=True)
            ]
            if hints.is_tool:
                unlisted = Stream(key, position, began_at, now, is_listed=False)
                unlisted.calls = unlisted.making = 1
                return unlisted, counts, rows
            found = self._streams.get(key)
            is_new = found is None or found.has_ended
            # It says that a stream has ended, perhaps one whose end was logged, or whose connection
            # was another one.
            is_goodbye = hints.is_last and not request.row_count
            if found is None:
                found = Stream(key, position, began_at, now)
                counts.opened += not is_goodbye
            found.has_ended = is_goodbye and is_new
            found.is_last = False
            found.trainer_sample = hints.trainer_sample
            found.pass_time(now)
            if not found.calls:
                found.resume(now)
            found.datasets = list(dict.fromkeys(names))
            if not found.calls and request.row_count:
                found.position, found.end_row = position, request.first_row
            counts.open += not found.calls
            found.calls += 1
            found.making += 1
            self._streams[key] = found
            self._streams.move_to_end(key)
            forgotten = self._forget_beyond(STREAMS_KEPT)
        for other in forgotten:
            log_ended(other, "idle")
        if is_new and not is_goodbye:
            log_opened(found, position.sample_of(request.first_row))
        return found, counts, rows

    def _forget_beyond(self, most: int) -> list[Stream]:
        """Forget streams without a call, if there are more than this number.  Returns: those of
        them whose end was not logged.
        """
        if len(self._streams) <= most:
            return []
        # Not a slice of a list: that would read all of them at each call.
        oldest = itertools.islice(self._streams.items(), len(self._streams) - most)
        forgotten = [stream for _, stream in oldest if not stream.calls]
        for stream in forgotten:
            del self._streams[stream.key]
        return [stream for stream in forgotten if not stream.has_ended]


class CallActivity:
    """What one call does: it makes a frame, sends it, makes the next one."""

    def __init__(
        self,
        lock: threading.Lock,
        position: Position | SampleList,
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
            if not stream.has_first:
                stream.has_first = True
                counts.first_seconds.add(now - stream.began_at)
        self._is_sending, self._since = True, now

    def sent(self, frame: EncodedFrame, is_taken: bool) -> None:
        """The frame was sent; the next one is made.

        is_taken: False if the call ends, and its client may have the frame or not.
        """
        now = time.monotonic()
        stream, counts = self._stream, self._counts
        by_source: Sequence[int] = (frame.row_count,)
        if len(self._rows) > 1:
            by_source = np.bincount(frame.row_source, minlength=len(self._rows)).tolist()
        with self._lock:
            stream.pass_time(now)
            stream.sending -= 1
            stream.making += 1
            if is_taken:
                stream.moved_at = now
            stream.rows += frame.row_count
            stream.position, stream.end_row = self._position, frame.end_row
            counts.frames += 1
            counts.frame_bytes += len(frame.message)
            counts.send_seconds.add(now - self._since)
            for each, rows in zip(self._rows, by_source, strict=True):
                each.rows += rows
                each.token_bytes += rows * frame.row_bytes
        self._is_sending, self._since = False, now

    def end(self, *, is_last: bool) -> Stream | None:
        """The call ends, at any point.

        is_last: whether it was answered, and no other follows.  Returns: the stream, if that was
        its end.
        """
        with self._lock:
            stream = self._stream
            stream.left_at = time.monotonic()
            stream.pass_time(stream.left_at)
            if self._is_sending:
                stream.sending -= 1
            else:
                stream.making -= 1
            stream.calls -= 1
            stream.is_last |= is_last
            if not stream.is_listed:
                return None
            self._counts.open -= not stream.calls
            has_ended = stream.is_last and not (stream.calls or stream.has_ended)
            stream.has_ended |= has_ended
            return stream if has_ended else None
