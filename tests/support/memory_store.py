"""A store of tokens in arrays, for tests that need no file, and for planes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorpusChanged
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.formats import Layout
from tokenfeed.server.storage.narrowing import Narrowing
from tokenfeed.server.storage.store import Piece, ReadCounts, SameContent, Submit
from tokenfeed.stream.identity import plane_fingerprint
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.wire.row_block import Plane


@dataclass(frozen=True, slots=True)
class MemoryShard:
    """An array in place of a file."""

    path: str
    layout: Layout


class MemoryStore:
    """A TokenStore of arrays. Slow and simple: a second implementation of the interface."""

    kind = "memory"
    cold = False
    digest_path = "nowhere"
    facts: Sequence[object] = ()

    def __init__(
        self,
        name: str,
        shards: Sequence[npt.NDArray[np.integer]],
        loss_masks: Sequence[npt.ArrayLike] | None = None,
        document_starts: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        """Hold tokens: one array per shard, all of one type.

        loss_masks: for each shard one value per token, 1 if it is to be learned, else 0.
        document_starts: for each shard the tokens with which its documents begin, ascending.
        """
        self.name = name
        self.stored = shards[0].dtype
        self.narrowing = Narrowing(self.stored)
        self.shape = Shape(np.array([shard.size for shard in shards]))
        self.shards = [
            MemoryShard(f"{name}-{index}", Layout(self.kind, shard.dtype, 0, shard.size, "a test"))
            for index, shard in enumerate(shards)
        ]
        self._tokens = shards
        given = {DOCUMENT_STARTS: (document_starts, "<u8"), LOSS_MASK: (loss_masks, np.uint8)}
        self._planes = {
            kind: [np.asarray(part, dtype) for part in parts]
            for kind, (parts, dtype) in given.items()
            if parts is not None
        }
        self.planes = {kind: _fingerprint(kind, parts) for kind, parts in self._planes.items()}
        self.shapes = (self.shape,)
        self.failed = False
        self.read_counts = ReadCounts(0, 0)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        return self.narrowing.served

    @property
    def memory_bytes(self) -> int:
        return self.shape.token_count * self.stored.itemsize

    def narrow(self, token_max: int) -> None:
        self.narrowing = Narrowing(self.stored, token_max)

    def gather(
        self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger], patient: bool = True
    ) -> None:
        self.require_intact()
        tokens[:] = 0
        for row in range(len(spans)):
            place = 0
            for shard, first, end in _spans_of(spans, row):
                tokens[row, place : place + end - first] = self._tokens[shard][first:end]
                place += end - first

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        self.require_intact()
        return tuple(
            _plane(kind, [self._plane_row(kind, spans, row) for row in range(len(spans))])
            for kind in planes
        )

    def advise(self, spans: Spans, planes: Sequence[int] = ()) -> None:
        """All of it is in memory."""

    def read_ahead(self, spans: Spans) -> None:
        """All of it is in memory."""

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        return self._tokens[shard].tobytes()[first_byte : first_byte + size_bytes]

    read_served = read

    def require_intact(self) -> None:
        if self.failed:
            raise CorpusChanged("dataset", f"{self.name!r} changed while it was served")

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Arrays do not change."""

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        return not self.failed

    def bring_in(self) -> Iterator[Piece]:
        yield Piece(self.memory_bytes)

    def kept_digest(self) -> bytes:
        return b""

    def keep_digest(self, digest: bytes) -> str:
        raise OSError(30, "Read-only file system")

    def close(self) -> None:
        self.failed = True

    def _plane_row(self, kind: int, spans: Spans, row: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a row's plane, as docs/protocol.md, Planes, has them."""
        starts: list[int] = []
        mask = np.zeros(spans.row_tokens, np.uint8)
        place = 0
        for shard, first, end in _spans_of(spans, row):
            content = self._planes[kind][shard]
            if kind == LOSS_MASK:
                mask[place : place + end - first] = content[first:end]
            else:
                starts += [place + int(one) - first for one in content if first <= one < end]
            place += end - first
        if kind == LOSS_MASK:
            return np.packbits(mask, bitorder="little")
        return np.array([one for one in starts if one], "<u4").view(np.uint8)


def _spans_of(spans: Spans, row: int) -> Iterator[tuple[int, int, int]]:
    """Yield shard, first and end token of each span of a row, which lie end to end in it."""
    for span in range(spans.first_span[row], spans.first_span[row + 1]):
        first = int(spans.token_offset[span])
        yield int(spans.shard[span]), first, first + int(spans.token_count[span])


def _fingerprint(kind: int, parts: Sequence[npt.NDArray[np.generic]]) -> bytes:
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
    return plane_fingerprint(kind, [part.size for part in parts], [digest])


def _plane(kind: int, rows: Sequence[npt.NDArray[np.uint8]]) -> Plane:
    lengths = np.array([row.size for row in rows], dtype=np.uint32)
    return Plane(kind, lengths, np.concatenate([np.empty(0, np.uint8), *rows]))
