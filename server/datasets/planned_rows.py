"""The spans of a stream's next rows, planned thousands at a time, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence

from tokenfeed.sampling.plan import PLAN_ROWS, Shape, plan, rows_at_once
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.frame import rows_per_frame
from tokenfeed.wire.request import AnyRequest, SampleList

from ..storage.store import READ_AHEAD_BYTES, RowStore


class PlannedRows:
    """The rows of a request, in order. Those behind them are read ahead while the store is cold.

    row: the rank's row that comes next.  end_row: the end of the request.
    """

    def __init__(self, store: RowStore, request: AnyRequest) -> None:
        """Begin at the request's first row."""
        self._store = store
        self._planes = request.planes
        self.row = self._advised_row = request.first_row
        self.end_row = request.end_row
        self._plan = LookaheadPlan(
            request.stream, store.shapes, request.position, self.row, self.end_row
        )
        row_bytes = request.stream.row_tokens * store.dtype.itemsize
        # At most PLAN_ROWS: with very short rows the first ones would wait for a long plan.
        self._rows_ahead = min(PLAN_ROWS, rows_per_frame(READ_AHEAD_BYTES, row_bytes))

    def take(self, row_count: int) -> Spans:
        """Return the spans of the next rows: row_count, or what is left. They may be used until the
        next call.
        """
        first, end = self.row, min(self.row + row_count, self.end_row)
        ahead = end + self._rows_ahead
        if self._store.cold:
            self._store.advise(self._plan.rows(self._advised_row, ahead), self._planes)
        self._advised_row = min(ahead, self.end_row)
        spans = self._plan.rows(first, end)
        self._plan.discard_before(end)
        self.row = end
        return spans


class LookaheadPlan:
    """Spans of the rows of one stream, requested in order.

    Planning a few thousand rows costs little more than planning one. The read-ahead needs rows
    beyond those of the current frame. So planned rows are kept until they are discarded, and more
    are planned before they run out.
    """

    def __init__(
        self,
        stream: Stream,
        shapes: Sequence[Shape],
        position: Position | SampleList,
        first_row: int,
        end_row: int,
    ) -> None:
        """Start at a row of the stream, of one stage.  end_row: the end of the stream."""
        self._stream = stream
        self._shapes = shapes
        self._position = position
        self._end_row = end_row
        self._first_row = self._wanted_row = self._planned_row = first_row
        self._rows_at_once = rows_at_once(stream, shapes)
        self._spans = self._plan(0)

    def discard_before(self, end_row: int) -> None:
        """Discard the rows before end_row, the next time more rows are planned."""
        self._wanted_row = end_row

    def rows(self, first_row: int, end_row: int) -> Spans:
        """Return the spans of rows, as far as they exist.  first_row: not discarded yet."""
        missing = min(end_row, self._end_row) - self._planned_row
        if missing > 0:
            count = min(max(self._rows_at_once, missing), self._end_row - self._planned_row)
            kept = self._spans[self._wanted_row - self._first_row :]
            self._first_row = self._wanted_row
            self._spans = Spans.joined([kept, self._plan(count)])
        return self._spans[first_row - self._first_row : end_row - self._first_row]

    def _plan(self, row_count: int) -> Spans:
        """Plan the next rows."""
        samples = self._position.samples(self._planned_row, row_count)
        self._planned_row += row_count
        return plan(self._stream, self._shapes, samples)
