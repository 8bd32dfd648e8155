"""The frames of one checked call: plan -> store -> frames."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenfeed.errors import Deleted, SamplesExhausted, Unreadable
from tokenfeed.sampling.spans import Numbers, Spans
from tokenfeed.wire import draft, frame
from tokenfeed.wire.request import AnyRequest

from ..datasets.planned_rows import PlannedRows
from ..datasets.redactions.redacted_rows import CurrentRows
from ..storage.store import RowStore
from .admission import Connection
from .fair_scheduler import FairScheduler


class MadeFrame(NamedTuple):
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

    datasets: names of the dataset of each source.  store: what its rows are planned for.  rows:
    what those of a frame are gathered from.  shared: what all its frames have in common.
    scheduler: shared by all streams of the same store.
    """

    datasets: Sequence[str]
    store: RowStore
    rows: CurrentRows
    request: AnyRequest
    shared: frame.Frames
    scheduler: FairScheduler

    def frames(self, connection: Connection) -> Iterator[MadeFrame]:
        """Yield the frames in order, scheduled fairly against those of other peers.

        Raises: CorpusChanged; Deleted, behind the rows before the one that needs deleted tokens;
        SamplesExhausted at sample 2^63.
        """
        store = self.store
        row_bytes = self.request.stream.row_tokens * store.dtype.itemsize
        rows = PlannedRows(store, self.request)
        while rows.row < rows.end_row:
            stream_row = rows.row
            frame_bytes = self.scheduler.cap_frame_bytes(
                connection.frame_bytes, connection.sent_bytes, connection.calls
            )
            spans = rows.take(frame.rows_per_frame(frame_bytes, row_bytes))
            frames, deleted = self._frames_before_deleted(spans, stream_row, connection)
            sent_at = time.monotonic()
            while frames:
                yield frames.pop(0)  # not kept while the next one is made
            if deleted is not None:
                raise deleted
            taken_seconds = time.monotonic() - sent_at
            connection.frame_bytes = frame.next_frame_bytes(frame_bytes, taken_seconds)
        if self.request.is_endless:
            raise SamplesExhausted("first_sample", "the next batch would reach sample 2^63")

    def _frames_before_deleted(
        self, spans: Spans, stream_row: int, connection: Connection
    ) -> tuple[list[MadeFrame], Deleted | None]:
        """Return rows as frames, up to the first one that needs deleted tokens, and the error of
        that one.
        """
        try:
            return self._frames(spans, stream_row, connection), None
        except Deleted as error:
            row = error.row - spans.whole.first_row
            deleted = error.at_sample(self.request.position.sample_of(stream_row + row))
        if not row:
            return [], deleted
        # More of these rows may be deleted by now.
        frames, earlier = self._frames_before_deleted(spans[:row], stream_row, connection)
        return frames, earlier or deleted

    def _frames(self, spans: Spans, stream_row: int, connection: Connection) -> list[MadeFrame]:
        """Return rows as frames, nearly always one.  stream_row: of the first row."""
        # A stream that waits for the disk, or that retries a read, must not hold a slot: other
        # streams could not wait for the disk at the same time.
        if not self.store.cold:
            try:
                with self.scheduler.slot(connection.peer, starts=not connection.sent_bytes):
                    return self._encoded(spans, stream_row, patient=False)
            except Unreadable:
                pass
        return self._encoded(spans, stream_row, patient=True)

    def _encoded(self, spans: Spans, stream_row: int, *, patient: bool) -> list[MadeFrame]:
        return self.rows.gathered(lambda store: self._made(store, spans, stream_row, patient))

    def _made(
        self, store: RowStore, spans: Spans, stream_row: int, patient: bool
    ) -> list[MadeFrame]:
        planes = store.gather_planes(spans, self.request.planes, patient)
        drafts = draft.drafts(self.shared, stream_row, len(spans), store.dtype, planes)
        for part in drafts:
            store.gather(spans[part.rows], part.tokens, patient)
        row_source, row_bytes = spans.row_source, spans.row_tokens * store.dtype.itemsize
        return [
            MadeFrame(
                part.sealed(),
                stream_row + part.rows.stop,
                part.rows.stop - part.rows.start,
                row_source[part.rows],
                row_bytes,
            )
            for part in drafts
        ]
