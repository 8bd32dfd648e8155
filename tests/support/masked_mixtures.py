"""A server of mixtures with planes, from memory: slow, simple, and by the second implementation's
fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from tests.support import reference
from tests.support.frames import encode
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling.plan import plan
from tokenfeed.server.rpc.frame_producer import EncodedFrame
from tokenfeed.server.rpc.service import TokenFeed
from tokenfeed.stream.planes import REDACTED
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stage import Corpus
from tokenfeed.wire import frame
from tokenfeed.wire.request import AnyRequest, Expected
from tokenfeed.wire.row_block import Plane, RowBlock

_ROWS = 3
"""In a frame: fewer than in a batch, and never a whole number of batches."""


class MaskedMixtures(TokenFeed):
    """Serves planes of mixtures; all its stores are MemoryStores."""

    def _open(self, request: AnyRequest, expected: Expected) -> _Frames:
        stream = request.stream
        if len(stream.sources) == 1:
            return super()._open(request, expected)
        datasets = [self.datasets.by_name[source.dataset] for source in stream.sources]
        stores = [dataset.store for dataset in datasets]
        for store in stores:
            missing = set(store.planes) & {51} - {*request.planes, *request.declined_planes}
            if missing:
                raise StreamMismatch("declined_planes", f"{store.name} has the planes {missing}")
        planes = {kind: self._fingerprint(kind, request) for kind in request.planes}
        if dict(expected.planes) != planes:
            raise StreamMismatch("expected_fingerprint", "that of a plane is another one")
        fingerprints = zip(stream.numbers, (each.fingerprint for each in datasets), strict=True)
        known = stream.known({number: Corpus(found) for number, found in fingerprints})
        identity = known.identity(SAMPLE_END - 1)
        if identity != expected.identity:
            raise InvalidRequest("expected_identity", "is another one")
        shared = frame.Frames(stream.row_tokens, request.position, identity, planes)
        return _Frames([dataset.name for dataset in datasets], stores, request, shared)

    def _fingerprint(self, kind: int, request: AnyRequest) -> bytes:
        """The fingerprint of a plane; one that no source has is refused."""
        found = [
            (source.number, self.datasets.by_name[source.dataset].store.planes[kind])
            for source in request.stream.sources
            if kind in self.datasets.by_name[source.dataset].store.planes
        ]
        if not found and kind != REDACTED:
            raise InvalidRequest("planes", f"{kind} is of no source")
        return reference.stage_plane_fingerprint(kind, found)


class _Frames:
    """The frames of a call."""

    def __init__(
        self, names: list[str], stores: list, request: AnyRequest, shared: frame.Frames
    ) -> None:
        self.datasets = names
        self._stores = stores
        self.request = request
        self.reader = SimpleNamespace(request=request)  # what activity counts by
        self.shared = shared

    def frames(self, connection: object, is_active: object) -> Iterator[EncodedFrame]:
        row, end = self.request.first_row, self.request.end_row
        while row < end:
            count = min(_ROWS, end - row)
            block = self._block(row, count)
            row += count
            for message in encode(self.shared, row - count, block):
                sources = np.zeros(count, np.int64)
                yield EncodedFrame(message, row, count, sources, block.tokens.nbytes // count)

    def _block(self, first_row: int, count: int) -> RowBlock:
        stream, kinds = self.request.stream, self.request.planes
        samples = self.request.position.samples(first_row, count)
        spans = plan(stream, [store.shape for store in self._stores], samples)
        tokens = np.zeros((count, stream.row_tokens), max(store.dtype for store in self._stores))
        content: dict[int, list[bytes]] = {kind: [] for kind in kinds}
        for row, source in enumerate(spans.row_source.tolist()):
            store, own = self._stores[source], spans.select(np.array([row]))
            found = np.empty((1, stream.row_tokens), store.dtype)
            store.gather(own, found)
            tokens[row] = found[0]
            for kind in kinds:
                has = [kind] if kind in store.planes else []
                content[kind].append(
                    b"".join(plane.content.tobytes() for plane in store.gather_planes(own, has))
                )
        return RowBlock(tokens, tuple(_plane(kind, rows) for kind, rows in content.items()))


def _plane(kind: int, rows: list[bytes]) -> Plane:
    lengths = np.array([len(row) for row in rows], np.uint32)
    return Plane(kind, lengths, np.frombuffer(b"".join(rows), np.uint8))
