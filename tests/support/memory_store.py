"""A store of tokens in arrays, for tests that need no file, and for planes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tests.support.memory_files import MemoryBytes, MemoryShard
from tokenfeed.errors import Deleted
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.formats import Layout
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.stream.identity import plane_fingerprint
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.wire.row_block import Plane


class MemoryStore(TokenStore):
    """The tokens and planes of arrays."""

    def __init__(
        self,
        name: str,
        shards: Sequence[npt.NDArray[np.integer]],
        loss_masks: Sequence[npt.ArrayLike] | None = None,
        document_starts: Sequence[npt.ArrayLike] | None = None,
        delay_seconds: float = 0.0,
    ) -> None:
        """Hold tokens: one array per shard, all of one type.

        loss_masks: for each shard one value per token, 1 if it is to be learned, else 0.
        document_starts: for each shard the tokens with which its documents begin, ascending.
        delay_seconds: as for MemoryBytes.
        """
        files = [
            MemoryShard(
                f"{name}-{index}",
                Layout("memory", shard.dtype, 0, shard.size, "a test"),
                shard.tobytes(),
            )
            for index, shard in enumerate(shards)
        ]
        super().__init__(name, MemoryBytes(name, files, delay_seconds))
        given = {DOCUMENT_STARTS: (document_starts, "<u8"), LOSS_MASK: (loss_masks, np.uint8)}
        for kind, (parts, dtype) in given.items():
            if parts is not None:
                self.add_plane(MemoryPlane(kind, [np.asarray(part, dtype) for part in parts]))

    def plane(self, kind: int) -> MemoryPlane:
        """Return a plane, to change its fingerprint."""
        found = self._planes[kind]
        assert isinstance(found, MemoryPlane)
        return found


class MemoryPlane:
    """A `PlaneReader` of arrays."""

    cold = False

    def __init__(self, kind: int, parts: Sequence[npt.NDArray[np.generic]]) -> None:
        self.kind = kind
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        self.fingerprint = plane_fingerprint(kind, [part.size for part in parts], [digest])
        self._parts = parts

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        rows = [self._row(spans, row) for row in range(len(spans))]
        lengths = np.array([row.size for row in rows], dtype=np.uint32)
        return Plane(self.kind, lengths, np.concatenate([np.empty(0, np.uint8), *rows]))

    def advise(self, spans: Spans, due_seconds: float = 0.0) -> None:
        """All of it is in memory."""

    def ready_count(self, spans: Spans) -> int:
        return len(spans)

    def close(self) -> None:
        """Hold it for the next test."""

    def _row(self, spans: Spans, row: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a row's plane, as docs/protocol.md, Planes, has them."""
        starts: list[int] = []
        mask = np.zeros(spans.row_tokens, np.uint8)
        place = 0
        for shard, first, end in _spans_of(spans, row):
            content = self._parts[shard]
            if self.kind == LOSS_MASK:
                mask[place : place + end - first] = content[first:end]
            else:
                starts += [place + int(one) - first for one in content if first <= one < end]
            place += end - first
        if self.kind == LOSS_MASK:
            return np.packbits(mask, bitorder="little")
        return np.array([one for one in starts if one], "<u4").view(np.uint8)


def _spans_of(spans: Spans, row: int) -> Iterator[tuple[int, int, int]]:
    """Yield shard, first and end token of each span of a row, which lie end to end in it."""
    for span in range(spans.first_span[row], spans.first_span[row + 1]):
        first = int(spans.token_offset[span])
        yield int(spans.shard[span]), first, first + int(spans.token_count[span])


class ErasedStore(MemoryStore):
    """A store whose tokens are all erased."""

    def gather(self, spans: Spans, *_: object) -> None:  # type: ignore[override]
        raise Deleted.of("train", "a.bin", 0, 5, spans.whole.first_row)
