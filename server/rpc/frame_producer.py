"""The frames of one checked GetBatch call: plan -> store -> frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tokenfeed.errors import SamplesExhausted, Unreadable
from tokenfeed.sampling.plan import PLAN_ROWS
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire import draft, frame
from tokenfeed.wire.request import StreamRequest

from ..datasets.dataset import Dataset
from ..storage.store import READ_AHEAD_BYTES
from .fair_scheduler import FairScheduler
from .lookahead_plan import LookaheadPlan


@dataclass(frozen=True, slots=True)
class FrameProducer:
    """Encodes the frames of a request.

    stream: the stream of all its frames.  scheduler: shared by all streams of the dataset.
    """

    dataset: Dataset
    request: StreamRequest
    stream: frame.Stream
    scheduler: FairScheduler

    def frames(self, peer: str) -> Iterator[bytes]:
        """Yield the frames in order, scheduled fairly against those of other peers.

        Raises: CorpusChanged; SamplesExhausted at sample 2^63.
        """
        spec, position = self.request.spec, self.request.position
        store = self.dataset.store
        row_bytes = spec.row_tokens * store.dtype.itemsize
        first = advised_end = self.request.first_row
        end_row = self.request.end_row
        rows = LookaheadPlan(spec, [store.shape], position, first, end_row)
        # At most PLAN_ROWS: with very short rows the first frame would wait for a long plan.
        rows_ahead = min(PLAN_ROWS, frame.rows_per_frame(READ_AHEAD_BYTES, row_bytes))
        frame_bytes = frame.FRAME_BYTES_FIRST
        while first < end_row:
            end = min(first + frame.rows_per_frame(frame_bytes, row_bytes), end_row)
            if store.cold:
                store.advise(rows.rows(advised_end, end + rows_ahead))
            advised_end = min(end + rows_ahead, end_row)
            messages = self._messages(rows.rows(first, end), first, peer)
            sent_at = time.monotonic()
            yield from messages
            rows.discard_before(end)
            frame_bytes = frame.next_frame_bytes(frame_bytes, time.monotonic() - sent_at)
            first = end
            had_bytes = (end - self.request.first_row) * row_bytes
            frame_bytes = self.scheduler.cap_frame_bytes(frame_bytes, had_bytes)
        if self.request.is_endless:
            raise SamplesExhausted("first_sample", "the next batch would reach sample 2^63")

    def _messages(self, spans: Spans, stream_row: int, peer: str) -> list[bytes]:
        """Return rows as encoded frames, nearly always one.  stream_row: of the first row."""
        # A stream that waits for the disk, or that retries a read, must not hold a slot: other
        # streams could not wait for the disk at the same time.
        if not self.dataset.store.cold:
            try:
                with self.scheduler.slot(peer):
                    return self._encoded(spans, stream_row, patient=False)
            except Unreadable:
                pass
        return self._encoded(spans, stream_row, patient=True)

    def _encoded(self, spans: Spans, stream_row: int, *, patient: bool) -> list[bytes]:
        store = self.dataset.store
        planes = store.gather_planes(spans, self.request.spec.planes, patient)
        drafts = draft.drafts(self.stream, stream_row, len(spans), store.dtype, planes)
        for part in drafts:
            store.gather(spans[part.rows], part.tokens, patient)
        return [part.sealed() for part in drafts]
