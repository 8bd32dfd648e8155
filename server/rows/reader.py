"""Reads the rows of a request of one stage, in order.

Rows are planned thousands at a time, those behind them are read ahead while storage is cold, and
their tokens and planes go straight into the memory of the caller. A stream may last for days while
tokens of its datasets are erased: what is redacted or refused is looked at again meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import Deleted
from tokenfeed.sampling.plan import PLAN_ROWS
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.frame import rows_per_frame
from tokenfeed.wire.request import AnyRequest
from tokenfeed.wire.row_block import Plane

from ..datasets.redactions.redacted_rows import are_same
from ..storage.store import EXCHANGES, READ_AHEAD_BYTES, RowStore
from .lookahead import LookaheadPlan

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


class RowReader:
    """The rows of a request. Of one thread.

    row: the rank's row that comes next.  end_row: the end of the request.  row_bytes: of the tokens
    of a row.
    """

    def __init__(self, request: AnyRequest, store: RowStore, wrap: Callable[[], RowStore]) -> None:
        """Begin at the request's first row.

        request: of one stage.  store: of its rows.  wrap: returns the rows with what is redacted
        and erased now, like `Redactor.wrap`; what it raises is raised.
        """
        self.request = request
        self.row = self._advised_row = request.first_row
        self.end_row = request.end_row
        self.row_bytes = request.stream.row_tokens * store.dtype.itemsize
        self._store = store
        self._wrap = wrap
        self._rows = self._wrapped()
        self._plan = LookaheadPlan(
            request.stream, store.shapes, request.position, self.row, self.end_row
        )
        # At most PLAN_ROWS: with very short rows the first ones would wait for a long plan.
        self._rows_ahead = min(PLAN_ROWS, rows_per_frame(READ_AHEAD_BYTES, self.row_bytes))

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of the tokens, uint16 or uint32."""
        return self._store.dtype

    @property
    def cold(self) -> bool:
        """Whether reads seem to wait for the disk or the network."""
        return self._store.cold

    def take(self, rows_max: int) -> Spans:
        """Return the spans of the next rows: rows_max, or what is left. They may be used until the
        next call.
        """
        first, end = self.row, min(self.row + rows_max, self.end_row)
        ahead = end + self._rows_ahead
        if self._store.cold:
            self._store.advise(self._plan.rows(self._advised_row, ahead), self.request.planes)
        self._advised_row = min(ahead, self.end_row)
        spans = self._plan.rows(first, end)
        self._plan.discard_before(end)
        self.row = end
        return spans

    def fill(
        self,
        spans: Spans,
        targets: Callable[[tuple[Plane, ...]], Sequence[AnyTarget]],
        *,
        patient: bool = True,
    ) -> Sequence[AnyTarget]:
        """Write the tokens of rows into memory, and return that.

        What is refused is what was erased half a second ago or later, and always what is erased in
        the files that were read. Lists only grow: what was redacted once stays so.
        targets: returns the memory for all of them, given their planes; is called again if what is
        erased has changed meanwhile.  patient: as for `RowStore.gather`.
        Raises: Deleted, with the first row that needs deleted tokens; CorpusChanged, Unreadable.
        """
        if EXCHANGES.count != self._exchanges or time.monotonic() >= self._wraps_at:
            self._rows = self._wrapped()
        while True:
            rows = self._rows
            found = targets(rows.gather_planes(spans, self.request.planes, patient))
            for target in found:
                rows.gather(spans[target.rows], target.tokens, patient)
            if EXCHANGES.count == self._exchanges:
                return found
            # A list says what is erased before a file is exchanged, so that rows which were wrapped
            # for the same lists had no token of it, whichever of the files was read.
            self._rows = self._wrapped()
            if are_same(self._rows, rows):
                return found

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

    def _wrapped(self) -> RowStore:
        self._exchanges = EXCHANGES.count
        self._wraps_at = time.monotonic() + _CURRENT_SECONDS
        return self._wrap()
