"""One pass over consecutive batches: a source of rows and their transfer to the device."""

from __future__ import annotations

from typing import Generic, TypeVar

from tokenfeed.wire.request import Request

from ..device.host_transfer import Pair, Transfer
from ..device.numpy_batch import HostPart
from ..device.row_source import RowSource
from ..source.datasets import Datasets

Array = TypeVar("Array")


class BatchReader(Generic[Array]):
    """Returns the batches (x, y) of one request, in order. Construction starts the prefetch."""

    def __init__(
        self, datasets: Datasets, request: Request, rows: RowSource, transfer: Transfer[Array]
    ) -> None:
        """Start the prefetch.  rows: those of the request, from datasets; not started yet."""
        self._transfer = transfer
        self._stride = request.position.stride
        self.request = request
        """Of all its batches."""
        self._datasets = datasets
        self.rows = rows
        """The source; for `next`, and to look at its queue."""
        self.sample = request.position.first_sample
        """Sample of row 0 of rank 0 in the next batch."""
        rows.start(owner=self)

    @property
    def noted(self) -> HostPart | None:
        """What the host knows of the batch that `next` returned last: the HostPart that the
        transfer's `note` (numpy_batch.Note) made. None before the first batch, without a note, and
        if it makes none.
        """
        return self._transfer.noted

    def next(self, out: Pair[Array] | None = None) -> Pair[Array] | None:
        """Return the next batch (x, y); waits for it. None at the end, or once the datasets are
        closed.

        out: two arrays of the shape of a batch to write to; None makes new ones.
        Raises: InvalidRequest in a fork, or if a token does not fit the type of x or y; the error
        that ended the stream.
        Do not use the reader after its `close`, or after an exception: its position is then
        undefined.
        """
        self._datasets.require_own_process()
        if self._datasets.closed:
            return None
        batch = self._transfer.next(self.rows, out)
        if batch is not None:
            self.sample += self._stride
        return batch

    def close(self) -> None:
        """Stop the prefetch; in a fork, do nothing. May be called twice. A reader that is
        garbage-collected stops too.
        """
        if not self._datasets.forked:
            self.rows.close()
