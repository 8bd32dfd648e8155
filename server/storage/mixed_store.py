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

from .bytes import Joint
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
        # The stores of a mixture are asked once, however many sources each is.
        self._distinct = list(dict.fromkeys(self._stores))
        self._joint = _joint_of(self._distinct)
        self._first_files = np.array([store.files.first_file for store in stores], dtype=np.int64)
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

    def ready_count(self, spans: Spans, planes: Sequence[int] = ()) -> int | None:
        """Like `TokenStore.ready_count`."""
        found = len(spans)
        for index, rows, own in self._by_source(spans):
            if self._stores[index].cold:
                had = [kind for kind in planes if self._has(index, kind)]
                count = self._stores[index].ready_count(own, had)
                if count is None:
                    return None
                if count < rows.size:
                    found = min(found, int(rows[count]))
        return found

    def advise(self, spans: Spans, planes: Sequence[int] = (), due_seconds: float = 0.0) -> None:
        """Like `TokenStore.advise`. A source may lack a plane."""
        parts = list(self._by_source(spans))
        self._used = [self._stores[index] for index, _, _ in parts]
        for index, _, own in parts:
            if self._stores[index].cold:
                had = [kind for kind in planes if self._has(index, kind)]
                self._stores[index].advise(own, had, due_seconds)

    def gather(
        self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger], patient: bool = True
    ) -> None:
        """Like `TokenStore.gather`."""
        if self._joint is not None and spans.are_windows and self._gather_joint(spans, tokens):
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

    def _gather_joint(self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger]) -> bool:
        """Write the rows of windows into tokens by one call, and return whether they can be
        delivered. If not, the reason is not examined: gather them again from each store.
        """
        assert self._joint is not None
        # Of any store: the extents of all of them are counted alike.
        extents = self._stores[0].extents(spans)
        extents = extents._replace(file=self._first_files[spans.source] + spans.shard)
        waits = self._joint(extents, tokens.reshape(-1).view(np.uint8))
        if waits is None:
            return False
        if waits:
            self._observe(spans, waits)
        # Last: if a store was closed meanwhile, other data may have been read.
        return not any([store.files.failed for store in self._distinct])  # noqa: C419 - faster

    def _observe(self, spans: Spans, waits: int) -> None:
        """Record a gather that had to wait, for the stores whose rows are not in memory."""
        used = sorted(set(spans.source.tolist()))
        away = []
        for index in used:
            own = spans.select(np.flatnonzero(spans.source == index))
            if not self._stores[index].files.seem_resident(self._stores[index].extents(own)):
                away.append(index)
        for index in away or used:
            self._stores[index].files.observe(waits)

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


def _joint_of(stores: Sequence[TokenStore]) -> Joint | None:
    """Return what gathers from all stores by one call; None unless all tokens are stored as they
    are served, in one type, where one call may read.
    """
    kinds = {(store.files.joint, store.stored) for store in stores}
    identical = all(store.narrowing.is_identity for store in stores)
    return stores[0].files.joint if identical and len(kinds) == 1 else None


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
