"""Reads the rows of a request of one stage, in order.

Rows are planned thousands at a time, those behind them are read ahead while storage is cold, and
their tokens and planes go straight into the memory of the caller. A stream may last for days while
tokens of its datasets are erased: what is redacted or refused is looked at again meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import Deleted
from tokenfeed.sampling.plan import PLAN_ROWS, Shape, plan, rows_at_once
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.frame import rows_per_frame
from tokenfeed.wire.request import AnyRequest, SampleList
from tokenfeed.wire.row_block import Plane, RowBlock

from ..datasets.redactions.redacted_rows import Rows, are_same
from ..storage.exchanges import EXCHANGES
from ..storage.store import READ_AHEAD_BYTES, RowStore
from .held_groups import HeldGroups

_CURRENT_SECONDS = 0.5
"""How long a stream may go without a look at what is erased; it looks at once when a file that it
reads from was exchanged."""

Found = TypeVar("Found")


class Target(Protocol):
    """Memory for some of the rows.  rows: which ones.  tokens: of the dtype of the reader, [rows,
    row_tokens], C-contiguous.
    """

    @property
    def rows(self) -> slice: ...  # noqa: D102

    @property
    def tokens(self) -> npt.NDArray[np.unsignedinteger]: ...  # noqa: D102


AnyTarget = TypeVar("AnyTarget", bound=Target)


class _Memory(NamedTuple):
    """New memory of all rows, and their planes."""

    rows: slice
    tokens: npt.NDArray[np.unsignedinteger]
    planes: tuple[Plane, ...]


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


class RowReader:
    """The rows of a request. Of one thread.

    row: the rank's row that comes next.  end_row: the end of the request.  row_bytes: of the tokens
    of a row.  waits: whether the rows that were taken last are not at hand.
    """

    def __init__(
        self,
        request: AnyRequest,
        store: RowStore,
        wrap: Callable[[], Rows],
        groups: HeldGroups | None = None,
    ) -> None:
        """Begin at the request's first row.

        request: of one stage.  store: of its rows.  wrap: returns the rows with what is redacted
        and erased now, like `Redactor.wrap`; what it raises is raised.  groups: of the request;
        None if no storage is to know them.
        """
        self.request = request
        self.row = self._advised_row = request.first_row
        self.end_row = request.end_row
        self.row_bytes = request.stream.row_tokens * store.dtype.itemsize
        self.waits = False
        self._began_at = time.monotonic()
        self._store = store
        self._wrap = wrap
        self._groups = groups
        self._rows = self._wrapped()
        self._plan = PlannedRows(
            request.stream, store.shapes, request.position, self.row, self.end_row
        )
        # At most PLAN_ROWS: with very short rows the first ones would wait for a long plan.
        self._rows_ahead = min(PLAN_ROWS, rows_per_frame(READ_AHEAD_BYTES, self.row_bytes))

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of the tokens, uint16 or uint32."""
        return self._store.dtype

    def take(self, rows_max: int, *, may_be_fewer: bool = False) -> Spans:
        """Return the spans of the next rows: rows_max, or what is left. They may be used until the
        next call.

        may_be_fewer: whether to return only those that are at hand, if some are and others are not.
        """
        first, end = self.row, min(self.row + rows_max, self.end_row)
        ahead = end + self._rows_ahead
        if self._groups is not None:
            self._groups.at(first)
        spans, self.waits = self._plan.rows(first, end), self._store.cold
        if self.waits:
            advised = self._plan.rows(self._advised_row, ahead)
            self._store.advise(advised, self.request.planes, self._due_seconds(first))
            count = self._store.ready_count(spans, self.request.planes) if may_be_fewer else 0
            if count:
                spans, end, self.waits = spans[:count], first + count, False
        self._advised_row = max(self._advised_row, min(ahead, self.end_row))
        self._plan.discard_before(end)
        self.row = end
        return spans

    def _due_seconds(self, row: int) -> float:
        """Return when the first row that is not advised yet is needed, at the pace so far."""
        taken = row - self.request.first_row
        if not taken:
            return 0.0
        seconds = time.monotonic() - self._began_at
        return max(0, self._advised_row - row) * seconds / taken

    def fill(
        self,
        spans: Spans,
        targets: Callable[[tuple[Plane, ...]], Sequence[AnyTarget]],
        *,
        patient: bool = True,
    ) -> Sequence[AnyTarget]:
        """Write the tokens of rows into memory, and return that.

        Rows are refused that need tokens which were erased half a second ago or earlier, or which
        are erased in the files that were read. Lists only grow: what was redacted once stays so.
        targets: returns the memory for all of them, given their planes; is called again if what is
        erased has changed meanwhile.  patient: as for `RowStore.gather`.
        Raises: Deleted, with the first row that needs deleted tokens; CorpusChanged, Unreadable.
        """
        while True:
            found = self.gather(spans, targets, patient=patient)
            if self.is_current():
                return found

    def gather(
        self,
        spans: Spans,
        targets: Callable[[tuple[Plane, ...]], Sequence[AnyTarget]],
        *,
        patient: bool = True,
    ) -> Sequence[AnyTarget]:
        """Like `fill`, but does not look at what is erased. The caller may use the rows once
        `is_current` has returned True, and has to gather them again if it returns False.
        """
        rows = self._rows
        found = targets(rows.gather_planes(spans, self.request.planes, patient))
        for target in found:
            rows.gather(spans[target.rows], target.tokens, patient)
        return found

    def is_current(self) -> bool:
        """Return whether the rows that were gathered last are as `fill` promises. May look at what
        is erased, which waits for the file systems of the lists: call it without a slot or lock.

        Raises: what the constructor's `wrap` raises.
        """
        if EXCHANGES.count == self._exchanges and time.monotonic() < self._wraps_at:
            return True
        # A list says what is erased before a file is exchanged (storage/exchanges.py), so that
        # rows which were wrapped for the same lists had no token of it, whichever was read.
        rows, self._rows = self._rows, self._wrapped()
        return are_same(self._rows, rows)

    def read(self, spans: Spans) -> RowBlock:
        """Return rows in new arrays, those before the first one that needs deleted tokens.

        spans: the last ones of those that were taken.
        Raises: Deleted if that row is the first of them; CorpusChanged, Unreadable.
        """
        block, deleted = self.before_deleted(spans, self.row - len(spans), self._read)
        if block is None:
            assert deleted is not None
            raise deleted
        return block

    def before_deleted(
        self, spans: Spans, row: int, read: Callable[[Spans], Found]
    ) -> tuple[Found | None, Deleted | None]:
        """Return what is read of the rows before the first one that needs deleted tokens, None if
        there is none; and the error of that one, which has its sample.

        row: that of the first of spans, in the counting of `row`.  read: returns what is read of
        spans, of one or more rows.
        """
        try:
            return read(spans), None
        except Deleted as error:
            count = error.row - spans.whole.first_row
            deleted = error.at_sample(self.request.position.sample_of(row + count))
        if not count:
            return None, deleted
        # More of these rows may be deleted by now.
        found, earlier = self.before_deleted(spans[:count], row, read)
        return found, earlier or deleted

    def _read(self, spans: Spans) -> RowBlock:
        def memory(planes: tuple[Plane, ...]) -> tuple[_Memory]:
            tokens = np.empty((len(spans), spans.row_tokens), dtype=self.dtype)
            return (_Memory(slice(0, len(spans)), tokens, planes),)

        (found,) = self.fill(spans, memory)
        return RowBlock(found.tokens, found.planes)

    def _wrapped(self) -> Rows:
        self._exchanges = EXCHANGES.count
        self._wraps_at = time.monotonic() + _CURRENT_SECONDS
        return self._wrap()
