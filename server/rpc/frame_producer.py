"""The frames of one checked GetBatch call: plan -> store -> frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tokenfeed.errors import SamplesExhausted, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire import draft, frame
from tokenfeed.wire.request import StreamRequest

from ..datasets.planned_rows import PlannedRows
from ..storage.store import RowStore
from .admission import Connection
from .fair_scheduler import FairScheduler


@dataclass(frozen=True, slots=True)
class FrameProducer:
    """Encodes the frames of a request.

    store: what its rows are gathered from.  stream: the stream of all its frames.  scheduler:
    shared by all streams of the same store.
    """

    store: RowStore
    request: StreamRequest
    stream: frame.Stream
    scheduler: FairScheduler

    def frames(self, connection: Connection) -> Iterator[bytes]:
        """Yield the frames in order, scheduled fairly against those of other peers.

        Raises: CorpusChanged; SamplesExhausted at sample 2^63.
        """
        store = self.store
        row_bytes = self.request.spec.row_tokens * store.dtype.itemsize
        rows = PlannedRows(store, self.request)
        while rows.row < rows.end_row:
            stream_row = rows.row
            frame_bytes = self.scheduler.cap_frame_bytes(
                connection.frame_bytes, connection.sent_bytes, connection.calls
            )
            spans = rows.take(frame.rows_per_frame(frame_bytes, row_bytes))
            messages = self._messages(spans, stream_row, connection)
            sent_at = time.monotonic()
            while messages:
                yield messages.pop(0)  # not kept while the next one is made
            taken_seconds = time.monotonic() - sent_at
            connection.frame_bytes = frame.next_frame_bytes(frame_bytes, taken_seconds)
        if self.request.is_endless:
            raise SamplesExhausted("first_sample", "the next batch would reach sample 2^63")

    def _messages(self, spans: Spans, stream_row: int, connection: Connection) -> list[bytes]:
        """Return rows as encoded frames, nearly always one.  stream_row: of the first row."""
        # A stream that waits for the disk, or that retries a read, must not hold a slot: other
        # streams could not wait for the disk at the same time.
        if not self.store.cold:
            try:
                with self.scheduler.slot(connection.peer, starts=not connection.sent_bytes):
                    return self._encoded(spans, stream_row, patient=False)
            except Unreadable:
                pass
        return self._encoded(spans, stream_row, patient=True)

    def _encoded(self, spans: Spans, stream_row: int, *, patient: bool) -> list[bytes]:
        store = self.store
        planes = store.gather_planes(spans, self.request.spec.planes, patient)
        drafts = draft.drafts(self.stream, stream_row, len(spans), store.dtype, planes)
        for part in drafts:
            store.gather(spans[part.rows], part.tokens, patient)
        return [part.sealed() for part in drafts]
