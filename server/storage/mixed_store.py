"""The stores of the sources of a mixture, as one: rows of any of them in one block.

Rows are served in the widest type of all sources. If all of them are mapped, and stored as they are
served, one system call gathers a frame, however many sources it has rows of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.piece_planes import OF_PIECES
from tokenfeed.wire.row_block import Plane

from .local.joint_map import JointMap
from .store import TokenStore


class MixedStore:
    """Rows of several stores; a RowStore. The source of a span is the index of its store."""

    def __init__(self, stores: Sequence[TokenStore], have_pieces: Sequence[bool] = ()) -> None:
        """stores: of each source of a stage, at least one.  have_pieces: whether the rows of each
        source are pieces of documents; by default none are.
        """
        self._stores = tuple(stores)
        self._have_pieces = tuple(have_pieces) or (False,) * len(self._stores)
        self.dtype: np.dtype[np.unsignedinteger] = max(
            (store.dtype for store in stores), key=lambda dtype: dtype.itemsize
        )
        self._joint = JointMap.of(stores)
        self._used: Sequence[TokenStore] = self._stores

    @property
    def shapes(self) -> Sequence[Shape]:
        """Like `RowStore.shapes`."""
        return [store.shape for store in self._stores]

    @property
    def cold(self) -> bool:
        """Whether gathers from one of the stores that were used last seem to wait. One that is
        hardly ever used does not count, since it is not known to be in memory for long.
        """
        return any([store.cold for store in self._used])  # noqa: C419 - a list is faster

    def require_intact(self) -> None:
        """Raise CorpusChanged if a dataset has failed."""
        for store in self._stores:
            store.require_intact()

    def advise(self, spans: Spans, planes: Sequence[int] = ()) -> None:
        """Like `TokenStore.advise`. A source may lack a plane."""
        parts = list(self._by_source(spans))
        self._used = [self._stores[index] for index, _, _ in parts]
        for index, _, own in parts:
            if self._stores[index].cold:
                self._stores[index].advise(own, [kind for kind in planes if self._has(index, kind)])

    def gather(
        self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger], patient: bool = True
    ) -> None:
        """Like `TokenStore.gather`."""
        if self._joint is not None and spans.are_windows and self._joint.gather(spans, tokens):
            self._used = [self._stores[index] for index in set(spans.source.tolist())]
            return
        for index, rows, own in self._by_source(spans):
            store = self._stores[index]
            found = np.empty((rows.size, spans.row_tokens), dtype=store.dtype)
            store.gather(own, found, patient)
            tokens[rows] = found

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        """Like `TokenStore.gather_planes`. A row of a source that lacks one has no bytes of it."""
        if not planes:
            return ()
        parts = list(self._by_source(spans))
        found = []
        for kind in planes:
            had = [
                (rows, self._stores[index].gather_planes(own, (kind,), patient)[0])
                for index, rows, own in parts
                if self._has(index, kind)
            ]
            found.append(_scattered(kind, len(spans), had))
        return tuple(found)

    def _has(self, index: int, kind: int) -> bool:
        """Return whether the rows of a source have a plane."""
        if self._have_pieces[index] and kind in OF_PIECES:
            return True
        return kind in self._stores[index].planes

    def _by_source(self, spans: Spans) -> Iterator[tuple[int, npt.NDArray[np.int64], Spans]]:
        """Yield each source that has rows, the indices of these rows, and their spans."""
        source = spans.row_source
        for index in sorted(set(source.tolist())):
            rows = np.flatnonzero(source == index)
            own = spans.select(rows)
            yield index, rows, own if self._have_pieces[index] else own.as_windows()


def _scattered(
    kind: int, row_count: int, parts: Sequence[tuple[npt.NDArray[np.int64], Plane]]
) -> Plane:
    """Return the plane of all rows.  parts: the indices of some rows, and their plane."""
    lengths = np.zeros(row_count, dtype=np.uint32)
    for rows, plane in parts:
        lengths[rows] = plane.row_lengths
    ends = np.cumsum(lengths, dtype=np.int64)
    content = np.empty(int(ends[-1]) if row_count else 0, dtype=np.uint8)
    for rows, plane in parts:
        # How far the bytes of each row move from their place in the part.
        shift = ends[rows] - np.cumsum(plane.row_lengths, dtype=np.int64)
        content[np.arange(plane.content.size) + np.repeat(shift, plane.row_lengths)] = plane.content
    return Plane(kind, lengths, content)
