"""One pass over consecutive batches: a stream and the delivery of its rows."""

from __future__ import annotations

from .dataset import RemoteDataset
from .delivery import Delivery
from .parts import StreamParts
from .request import StreamRequest
from .stream import Counters, FrameStream
from .widening import Batch


class Reader:
    """Hands out the batches of a request in order. Starts to receive when it is made."""

    def __init__(
        self,
        remote: RemoteDataset,
        request: StreamRequest,
        delivery: Delivery,
        *,
        prefetch_bytes: int,
        counters: Counters,
    ) -> None:
        """Begin to receive ahead."""
        self._delivery = delivery
        self._stride = request.position.stride
        self._request = request
        self._remote = remote
        self._spec: StreamParts | None = None
        self._stream = FrameStream(
            remote, request, prefetch_bytes=prefetch_bytes, counters=counters
        )
        self.sample = request.position.first_sample
        """Of row 0 of rank 0 in the batch that comes next."""
        self._stream.start(owner=self)

    @property
    def spec(self) -> StreamParts:
        """Which stream the batches are of. Waits for nobody once there was one."""
        if self._spec is None:
            self._spec = self._request.parts(self._remote.await_described().fingerprint)
        return self._spec

    def next(self, out: Batch | None = None) -> Batch | None:
        """Return the next batch, in out where that is given; None at the end, or once the feed is
        closed. Waits.

        Raises: InvalidRequest in a fork; what ended the stream.
        After any exception the reader is of no more use: nobody knows how far it came.
        """
        self._remote.require_own_process()
        if self._remote.closed:
            return None
        batch = self._delivery.next(self._stream, out)
        if batch is not None:
            self.sample += self._stride
        return batch

    def close(self) -> None:
        """End the thread. May be called twice; a reader that is let go of is closed too."""
        if not self._remote.forked:
            self._stream.close()
