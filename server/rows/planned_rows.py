"""Plans the spans of a stream's rows thousands at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tokenfeed.sampling.plan import Shape, plan, rows_at_once
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import SampleList


class PlannedRows:
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
