"""Tells storage which groups of `blocks` a stream is in, and which ones come next.

Storage that keeps a part of a corpus fetches these ahead, and lets go of those that no stream is in
any more. It needs no knowledge of orders for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenfeed.sampling.mixture_v1 import counts_at
from tokenfeed.sampling.orders.blocks_v1 import BlocksOfFiles, Group
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Source
from tokenfeed.wire.request import AnyRequest

from ..datasets.dataset import Dataset
from ..storage.bytes import Extents
from ..storage.store import TokenStore

_LOOKS = 8
"""In each group: how late storage may know of the next one, in parts of a group."""


class HeldGroups:
    """The groups of a stream. Of one thread; storage holds them until this is garbage."""

    def __init__(self, request: AnyRequest, datasets: Sequence[Dataset]) -> None:
        """Hold nothing yet.  request: of one stage.  datasets: of each source."""
        self._stream, self._position = request.stream, request.position
        self._end_row = request.end_row
        self._sources = [
            _SourceGroups(source, order, stores)
            for source, dataset in zip(request.stream.sources, datasets, strict=True)
            if (order := _order_of(source, dataset, request)) is not None
            and (stores := _holding(dataset, request))
        ]
        self._next_row = 0

    def at(self, row: int) -> None:
        """Hold what the stream reads at a row of the rank and behind it.  Raises: InvalidRequest at
        the first row, if storage has not the room for a group.
        """
        if not self._sources or not isinstance(self._position, Position):
            return
        if not self._next_row <= row < self._end_row:  # a call may have no rows
            return
        stage, sample = self._stream.stage, self._position.sample_of(row)
        own_samples = counts_at(stage, self._stream.seed, sample)
        windows = [each.hold(own_samples[each.source.number]) for each in self._sources]
        self._next_row = row + max(1, min(windows) // self._position.world_size // _LOOKS)


class _SourceGroups:
    """The groups of a source.  stores: of its tokens and planes, those that hold groups."""

    def __init__(self, source: Source, order: BlocksOfFiles, stores: Sequence[TokenStore]) -> None:
        self.source, self._order, self._stores = source, order, stores
        self._present: Group | None = None

    def hold(self, sample: int) -> int:
        """Hold the group of an own sample, and the next one; return how many windows it has.

        Raises: InvalidRequest at the first call if storage has not the room for a group of whole
        blocks. Later ones never do, and nor do rests, which may be of many files: the run is in the
        middle of an epoch, and what has no room comes by requests of its own.
        """
        present, seed = self._present, self.source.seed
        if present is None and (whole := self._order.group_at(0, seed)).has_whole_blocks:
            for store in self._stores:
                store.files.require_room(_extents(store, whole))
        if present is None or not present.first_sample <= sample < present.end_sample:
            self._present = present = self._order.group_at(sample, seed)
            following = self._order.group_at(present.end_sample, seed)
            for store in self._stores:
                store.files.hold(self, _extents(store, present), _extents(store, following))
        return present.end_sample - present.first_sample


def _order_of(source: Source, dataset: Dataset, request: AnyRequest) -> BlocksOfFiles | None:
    if not source.group_blocks:
        return None
    return dataset.store.shape.blocks(request.stream.context_length, source.group_blocks)


def _holding(dataset: Dataset, request: AnyRequest) -> list[TokenStore]:
    planes = [plane.store for plane in dataset.plane_files if plane.kind in request.planes]
    return [store for store in (dataset.store, *planes) if store.files.holds_groups]


def _extents(store: TokenStore, group: Group) -> Extents:
    token_bytes = store.stored.itemsize
    file = store.files.first_file + group.file
    return Extents(file, group.first_token * token_bytes, group.token_count * token_bytes)
