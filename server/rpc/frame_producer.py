"""The frames of one checked call: rows -> frames, and how many bytes each has.

The first ones of a connection are small, those behind them larger while they are read quickly, and
small again while many streams wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tokenfeed.errors import SamplesExhausted, Unreadable
from tokenfeed.sampling.spans import Numbers, Spans
from tokenfeed.wire import draft, frame

from ..rows.reader import RowReader
from .admission import Connection
from .fair_scheduler import FairScheduler

WAITS_AT_ONCE = 64
"""Streams that wait for the disk or the network, or that retry a read. More would not be faster,
but each needs memory for a frame; streams whose rows are at hand do not wait for them."""

# 5 to 7 MiB fit between a server and a client that does not read. 200 such streams got frames of
# 1 MiB and each kept two of them waiting: 2.3 MiB per stream, against 0.5 with small frames. 64
# streams at full speed got 110 Mtok/s with frames of 128 KiB throughout instead of 300, and 215 to
# 311 with frames of 256 KiB for the first UNREAD_BYTES.
CONTENDED_STREAMS = 16
CONTENDED_FRAME_BYTES = 1 << 18
UNREAD_BYTES = 8 << 20

_QUICK_SECONDS = 0.02
_SLOW_SECONDS = 0.2


class Schedulers(NamedTuple):
    """Whose turn it is among the streams of a dataset.

    running: of those whose rows are at hand.  waiting: of those that wait for them.
    """

    running: FairScheduler
    waiting: FairScheduler

    @classmethod
    def of_dataset(cls) -> Schedulers:
        """Return new ones."""
        return cls(FairScheduler(), FairScheduler(WAITS_AT_ONCE, WAITS_AT_ONCE))


class EncodedFrame(NamedTuple):
    """A frame, and what it holds.

    message: encoded.  end_row: the rank's row behind its last one.  row_count: of its rows.
    row_source: int64[row_count], index of the source of each.  row_bytes: of the tokens of a row.
    """

    message: bytes
    end_row: int
    row_count: int
    row_source: Numbers
    row_bytes: int


@dataclass(frozen=True, slots=True)
class FrameProducer:
    """Encodes the frames of a request.

    datasets: names of the dataset of each source.  reader: of its rows.  shared: what all its
    frames have in common.  schedulers: shared by all streams of the same store.
    """

    datasets: Sequence[str]
    reader: RowReader
    shared: frame.Frames
    schedulers: Schedulers

    def frames(
        self, connection: Connection, is_active: Callable[[], bool] = lambda: True
    ) -> Iterator[EncodedFrame]:
        """Yield the frames in order, scheduled fairly against those of other peers.

        is_active: tells whether the call still has a client.
        Raises: CallEnded if it has none while a frame waits to be made; CorpusChanged; Deleted,
        behind the rows before the one that needs deleted tokens; SamplesExhausted at sample 2^63.
        """
        reader = self.reader
        while reader.row < reader.end_row:
            row = reader.row
            size_bytes = frame_bytes(connection, self.schedulers.running.waiting_count)
            rows_max = frame.rows_per_frame(size_bytes, reader.row_bytes)
            # A frame has the rows that are at hand before it waits for others.
            spans = reader.take(rows_max, may_be_fewer=True)
            made, deleted = reader.before_deleted(
                spans, row, partial(self._frames, row, connection, is_active)
            )
            sent_at = time.monotonic()
            while made:
                yield made.pop(0)  # not kept while the next one is made
            if deleted is not None:
                raise deleted
            taken_seconds = time.monotonic() - sent_at
            connection.frame_bytes = next_frame_bytes(size_bytes, taken_seconds)
        if reader.request.is_endless:
            raise SamplesExhausted("first_sample", "the next batch would reach sample 2^63")

    def _frames(
        self, row: int, connection: Connection, is_active: Callable[[], bool], spans: Spans
    ) -> list[EncodedFrame]:
        """Return rows as frames, nearly always one.  row: the rank's row that is the first."""
        while True:
            made = self._scheduled(row, connection, is_active, spans)
            # Without a slot: the file system of a list of redactions may hang.
            if self.reader.is_current():
                return made

    def _scheduled(
        self, row: int, connection: Connection, is_active: Callable[[], bool], spans: Spans
    ) -> list[EncodedFrame]:
        """Return rows as frames, once they have had a slot, as `RowReader.gather` has them."""
        # A stream that waits for the disk, or that retries a read, must not hold a slot: other
        # streams could not wait for the disk at the same time.
        peer, starts = connection.peer, not connection.sent_bytes
        if not self.reader.waits:
            try:
                with self.schedulers.running.slot(peer, starts=starts, is_active=is_active):
                    return self._encoded(row, spans, patient=False)
            except Unreadable:
                pass
        with self.schedulers.waiting.slot(peer, starts=starts, is_active=is_active):
            return self._encoded(row, spans, patient=True)

    def _encoded(self, row: int, spans: Spans, *, patient: bool) -> list[EncodedFrame]:
        dtype, row_source = self.reader.dtype, spans.row_source
        drafts = self.reader.gather(
            spans,
            lambda planes: draft.drafts(self.shared, row, len(spans), dtype, planes),
            patient=patient,
        )
        return [
            EncodedFrame(
                part.sealed(),
                row + part.rows.stop,
                part.rows.stop - part.rows.start,
                row_source[part.rows],
                self.reader.row_bytes,
            )
            for part in drafts
        ]


def frame_bytes(connection: Connection, waiting_streams: int) -> int:
    """Return the size of the next frame, in bytes. It is smaller while more than CONTENDED_STREAMS
    wait, unless the connection was sent more bytes than its calls can leave unread, so that its
    client does read.

    waiting_streams: counts the streams of the dataset that wait for a slot.
    """
    if waiting_streams > CONTENDED_STREAMS and connection.sent_bytes < (
        connection.calls * UNREAD_BYTES
    ):
        return min(connection.frame_bytes, CONTENDED_FRAME_BYTES)
    return connection.frame_bytes


def next_frame_bytes(sent_bytes: int, taken_seconds: float) -> int:
    """Return the size of the frame behind one, in bytes, from the time that the client took to read
    that one.

    A stream starts with small frames, so that its first batch arrives early, and doubles them while
    they are read quickly. A slow consumer gets small frames, so that a slow stream uses little
    memory.
    sent_bytes: is the size that the frame was given.  taken_seconds: lasts until the client had
    room for another.
    """
    if taken_seconds < _QUICK_SECONDS:
        return min(2 * sent_bytes, frame.FRAME_BYTES_TARGET)
    if taken_seconds > _SLOW_SECONDS:
        return max(sent_bytes // 2, frame.FRAME_BYTES_FIRST)
    return sent_bytes
