"""One pass over consecutive batches: a source of rows and the delivery of what it hands out."""

from __future__ import annotations

from tokenfeed.stream.spec import StreamParts
from tokenfeed.wire.request import StreamRequest

from ..device.row_source import RowSource
from ..device.transfer import DeviceTransfer
from ..device.widening import Batch
from .streamed_dataset import StreamedDataset


class BatchReader:
    """Hands out the batches of a source in order, which begins to receive when this is made."""

    def __init__(
        self,
        dataset: StreamedDataset,
        request: StreamRequest,
        rows: RowSource,
        transfer: DeviceTransfer,
    ) -> None:
        """Begin to receive ahead.  rows: what the request asks for, of dataset, not started yet."""
        self._transfer = transfer
        self._stride = request.position.stride
        self._request = request
        self._dataset = dataset
        self._spec: StreamParts | None = None
        self._rows = rows
        self.sample = request.position.first_sample
        """Of row 0 of rank 0 in the batch that comes next."""
        rows.start(owner=self)

    @property
    def spec(self) -> StreamParts:
        """Which stream the batches are of. Waits for nobody once there was one."""
        if self._spec is None:
            self._spec = self._request.spec.parts(self._dataset.await_described().fingerprint)
        return self._spec

    def next(self, out: Batch | None = None) -> Batch | None:
        """Return the next batch, in out where that is given; None at the end, or once the feed is
        closed. Waits.

        Raises: InvalidRequest in a fork; what ended the stream.
        After any exception the reader is of no more use: nobody knows how far it came.
        """
        self._dataset.require_own_process()
        if self._dataset.closed:
            return None
        batch = self._transfer.next(self._rows, out)
        if batch is not None:
            self.sample += self._stride
        return batch

    def close(self) -> None:
        """End the thread. May be called twice; a reader that is let go of is closed too."""
        if not self._dataset.forked:
            self._rows.close()
