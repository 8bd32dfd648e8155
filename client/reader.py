"""One pass over consecutive batches: a source of rows and the delivery of what it hands out."""

from __future__ import annotations

from tokenfeed.position import Position

from .dataset import RemoteDataset
from .delivery import Delivery
from .row_source import RowSource
from .widening import Batch


class Reader:
    """Hands out the batches of a source in order, which begins to receive when this is made."""

    def __init__(
        self, remote: RemoteDataset, rows: RowSource, delivery: Delivery, position: Position
    ) -> None:
        """Begin to receive ahead.  rows: of remote, not started yet.  position: of the first."""
        self._delivery = delivery
        self._stride = position.stride
        self._remote = remote
        self._rows = rows
        self.sample = position.first_sample
        """Of row 0 of rank 0 in the batch that comes next."""
        rows.start(owner=self)

    def next(self, out: Batch | None = None) -> Batch | None:
        """Return the next batch, in out where that is given; None at the end, or once the feed is
        closed. Waits.

        Raises: InvalidRequest in a fork; what ended the stream.
        After any exception the reader is of no more use: nobody knows how far it came.
        """
        self._remote.require_own_process()
        if self._remote.closed:
            return None
        batch = self._delivery.next(self._rows, out)
        if batch is not None:
            self.sample += self._stride
        return batch

    def close(self) -> None:
        """End the thread. May be called twice; a reader that is let go of is closed too."""
        if not self._remote.forked:
            self._rows.close()
