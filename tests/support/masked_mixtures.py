"""A server of mixtures with planes, from memory: slow, simple, and by the second implementation's
fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from server.rpc.frame_producer import MadeFrame
from server.rpc.service import TokenFeed
from tests.support import reference
from tests.support.frames import encode
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling.plan import plan
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import StreamRequest, from_message
from tokenfeed.wire.row_block import Plane, RowBlock

_ROWS = 3
"""In a frame: fewer than in a batch, and never a whole number of batches."""


class MaskedMixtures(TokenFeed):
    """Serves planes of mixtures; all its stores are MemoryStores."""

    def _open(self, message: pb.GetBatchRequest) -> _Frames:
        request, expected = from_message(message)
        if request.spec.mixture is None:
            return super()._open(message)
        datasets = [self._datasets[source.dataset] for source in request.spec.sources]
        stores = [dataset.store for dataset in datasets]
        for store in stores:
            missing = set(store.planes) & {51} - {*request.spec.planes, *request.declined_planes}
            if missing:
                raise StreamMismatch("declined_planes", f"{store.name} has the planes {missing}")
        planes = {
            kind: reference.stage_plane_fingerprint(
                kind,
                [
                    (source.number, store.planes[kind])
                    for source, store in zip(request.spec.sources, stores, strict=True)
                    if kind in store.planes
                ],
            )
            for kind in request.spec.planes
        }
        if dict(expected.planes) != planes:
            raise StreamMismatch("expected_fingerprint", "that of a plane is another one")
        identity = request.spec.identity([Corpus(dataset.fingerprint) for dataset in datasets])
        if identity != expected.identity:
            raise InvalidRequest("expected_identity", "is another one")
        stream = frame.Stream(request.spec, request.position, identity, planes)
        names = [dataset.name for dataset in datasets]
        return _Frames(names, stores, request, stream)


class _Frames:
    """The frames of a call."""

    def __init__(
        self, names: list[str], stores: list, request: StreamRequest, stream: frame.Stream
    ) -> None:
        self.datasets = names
        self._stores = stores
        self.request = request
        self._stream = stream

    def frames(self, connection: object) -> Iterator[MadeFrame]:
        row, end = self.request.first_row, self.request.end_row
        while row < end:
            count = min(_ROWS, end - row)
            block = self._block(self.request.position, row, count)
            row += count
            for message in encode(self._stream, row - count, block):
                sources = np.zeros(count, np.int64)
                yield MadeFrame(message, row, count, sources, block.tokens.nbytes // count)

    def _block(self, position: Position, first_row: int, count: int) -> RowBlock:
        spec = self.request.spec
        spans = plan(
            spec, [store.shape for store in self._stores], position.samples(first_row, count)
        )
        tokens = np.zeros((count, spec.row_tokens), max(store.dtype for store in self._stores))
        content: dict[int, list[bytes]] = {kind: [] for kind in spec.planes}
        for row, source in enumerate(spans.row_source.tolist()):
            store, own = self._stores[source], spans.select(np.array([row]))
            found = np.empty((1, spec.row_tokens), store.dtype)
            store.gather(own, found)
            tokens[row] = found[0]
            for kind in spec.planes:
                has = [kind] if kind in store.planes else []
                content[kind].append(
                    b"".join(plane.content.tobytes() for plane in store.gather_planes(own, has))
                )
        return RowBlock(tokens, tuple(_plane(kind, rows) for kind, rows in content.items()))


def _plane(kind: int, rows: list[bytes]) -> Plane:
    lengths = np.array([len(row) for row in rows], np.uint32)
    return Plane(kind, lengths, np.frombuffer(b"".join(rows), np.uint8))
