"""`blocks-1`: every window once per epoch, and those of a group of blocks together.

A block is 2^19 consecutive tokens of a file. An epoch permutes all blocks, cuts them into groups of
about equal size, and permutes the windows of each group. So a reader needs one group at a
time, and can read whole blocks. The rests of files, each less than a block, come last in
an epoch, in chunks of a group's size. Which group a block is in does not depend on the context
length. Released: the windows that it returns never change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InvalidRequest
from .shuffled_v1 import permuted
from .splitmix import mix

Numbers: TypeAlias = "npt.NDArray[np.int64]"
_Of: TypeAlias = "Callable[[Numbers | slice], Numbers]"

_FIRST_SUBKEY = 1 << 33
_TURNS, _TABLES_MAX = 1 << 10, 16
"""Blocks of a table, and how many tables are kept, 16 KB each. Consecutive samples need the same
blocks, and find them in a table without a search.
"""
_EPOCHS_KEPT = 4
"""Size of an LRU cache. With 60,000 files, each entry is 1.9 MB."""


class Group(NamedTuple):
    """The tokens that an order reads together: whole blocks, or a chunk of the rests of files.

    first_sample, end_sample: own samples of the source that read it, in any order.
    file, first_token, token_count: int64[n], ranges of tokens, without the last target behind each.
    """

    first_sample: int
    end_sample: int
    file: Numbers
    first_token: Numbers
    token_count: Numbers

    @property
    def has_whole_blocks(self) -> bool:
        """Whether it is of whole blocks, and not a chunk of rests."""
        return bool((self.token_count == Blocks.BLOCK_TOKENS).all())


class Blocks:
    """The order, for any corpus: it has no place before `BlocksOfFiles` knows the files."""

    NAME = "blocks-1"
    USES_SEED = True
    HAS_EPOCHS = True
    LONG_DOCUMENTS: tuple[str, ...] = ()
    BLOCK_TOKENS = 1 << 19

    def places(self, samples: Numbers, seed: int, place_count: int, /) -> Numbers:
        """Raise InvalidRequest; as `Order.places`."""
        self._refuse()

    def places_among(
        self,
        samples: Numbers,
        source: Numbers,
        seeds: Sequence[int],
        place_counts: Sequence[int],
        /,
    ) -> Numbers:
        """Raise InvalidRequest; as `Order.places_among`."""
        self._refuse()

    def indices(self, places: Numbers, epochs: Numbers, seed: int, place_count: int, /) -> Numbers:
        """Raise InvalidRequest; as `Order.indices`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidRequest("order", f"{self.NAME} has places only where all files are known")


class BlocksOfFiles(Blocks):
    """The order of the windows of a corpus. Whole blocks are numbered file by file."""

    def __init__(self, token_counts: Numbers, context_length: int, group_blocks: int) -> None:
        """token_counts: int64[files], at least one.  context_length: T, divides 2^19.
        group_blocks: G, the maximum number of blocks in a group.
        """
        size = self.BLOCK_TOKENS
        targets = np.maximum(token_counts - 1, 0)
        blocks, rests = np.divmod(targets, size)
        self._windows = size // context_length
        self._file_ends = np.cumsum(targets // context_length)
        self._file_firsts = self._file_ends - targets // context_length
        self._block_ends = np.cumsum(blocks)
        self._block_firsts = self._block_ends - blocks
        self._block_count = int(self._block_ends[-1])
        self._group_count = -(-self._block_count // group_blocks)
        self._rest_firsts = self._file_firsts + blocks * self._windows
        self._rest_files = np.flatnonzero(rests)
        self._rest_numbers = np.cumsum(rests > 0) - 1
        self._rest_windows = rests[self._rest_files] // context_length
        self._rest_count = int(self._rest_windows.sum())
        self._chunk_count = -(-self._rest_count // (group_blocks * self._windows))
        self._context_length = context_length
        self._blocks_of = lru_cache(_TABLES_MAX)(self._blocks_in_turn)
        self._rests_of = lru_cache(_EPOCHS_KEPT)(self._rests)

    def places(self, samples: Numbers, seed: int, place_count: int, /) -> Numbers:
        """Return the window of each sample; as `Order.places`."""
        file, window = self._windows_of(samples, seed)
        found: Numbers = self._file_firsts[file] + window
        return found

    def windows(self, samples: Numbers, seed: int) -> tuple[Numbers, Numbers]:
        """Return where the window of each sample begins: file, and token in it, int64[n] each.

        samples, seed: as for `Order.places`.
        """
        file, window = self._windows_of(samples, seed)
        return file, window * self._context_length

    def group_at(self, sample: int, seed: int) -> Group:
        """Return the group of a sample: what a reader needs until its end.

        sample: own sample of the source.  seed: of the source.
        """
        epoch, index = divmod(sample, int(self._file_ends[-1]))
        in_blocks = self._block_count * self._windows
        if index < in_blocks:
            groups = _Parts(self._block_count, self._group_count, self._windows)
            first, end = groups.part_of(index)
            turn = np.arange(first, end)
            file, begin = self._blocks(turn, np.full_like(turn, epoch), seed)
            count = np.full_like(begin, self._windows)
            first, end = first * self._windows, end * self._windows
        else:
            chunks = _Parts(self._rest_count, self._chunk_count, 1)
            first, end = chunks.part_of(index - in_blocks)
            rests = self._rests_of(seed, epoch)
            begins = np.maximum(first, np.concatenate([[0], rests.ends[:-1]]))
            count = np.minimum(end, rests.ends) - begins
            within = np.flatnonzero(count > 0)
            file, begin, count = rests.files[within], (begins + rests.shifts)[within], count[within]
            first, end = first + in_blocks, end + in_blocks
        length, before = self._context_length, sample - index
        return Group(before + first, before + end, file, begin * length, count * length)

    def indices(self, places: Numbers, epochs: Numbers, seed: int, place_count: int, /) -> Numbers:
        """Return where windows come in an epoch, the inverse of `places`; as `Order.indices`."""
        if not places.size:
            return np.empty(0, dtype=np.int64)
        file = np.searchsorted(self._file_ends, places, side="right")
        return _split(
            places < self._rest_firsts[file],
            lambda at: self._indices_in_blocks(places[at], file[at], epochs[at], seed),
            lambda at: self._indices_in_rests(places[at], file[at], epochs[at], seed),
        )

    def _windows_of(self, samples: Numbers, seed: int) -> Numbers:
        """Return the window of each sample: int64[2, n], file, and number within the file."""
        if not samples.size:
            return np.empty((2, 0), dtype=np.int64)
        epochs, index = np.divmod(samples, int(self._file_ends[-1]))
        return _split(
            index < self._block_count * self._windows,
            lambda at: self._windows_in_blocks(index[at], epochs[at], seed),
            lambda at: self._windows_in_rests(index[at], epochs[at], seed),
        )

    def _windows_in_blocks(self, index: Numbers, epochs: Numbers, seed: int) -> Numbers:
        _, of_windows, *_ = _seeds(seed)
        groups = _Parts(self._block_count, self._group_count, self._windows)
        turn, window = np.divmod(groups.permuted(index, epochs, of_windows), self._windows)
        file, first = self._blocks_at(turn, epochs, seed)
        return np.stack([file, first + window])

    def _blocks_at(self, turn: Numbers, epochs: Numbers, seed: int) -> Numbers:
        """Return the block of each turn of an epoch: int64[2, n], file, and first window within the
        file.
        """
        first, end = int(turn.min()) // _TURNS, int(turn.max()) // _TURNS + 1
        epoch = int(epochs[0])
        if end - first > _TABLES_MAX or np.any(epochs != epoch):
            return self._blocks(turn, epochs, seed)
        tables = [self._blocks_of(seed, epoch, number) for number in range(first, end)]
        table = tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)
        return table.take(turn - first * _TURNS, axis=1)

    def _blocks_in_turn(self, seed: int, epoch: int, number: int) -> Numbers:
        """Return what `_blocks_at` does, of a range of turns; their places are kept for the next
        samples, which need the same ones.
        """
        first = number * _TURNS
        turn = np.arange(first, min(first + _TURNS, self._block_count))
        return self._blocks(turn, np.full_like(turn, epoch), seed)

    def _blocks(self, turn: Numbers, epochs: Numbers, seed: int) -> Numbers:
        of_blocks, *_ = _seeds(seed)
        block = permuted(turn, epochs, of_blocks, self._block_count)
        file = np.searchsorted(self._block_ends, block, side="right")
        return np.stack([file, (block - self._block_firsts[file]) * self._windows])

    def _indices_in_blocks(
        self, places: Numbers, file: Numbers, epochs: Numbers, seed: int
    ) -> Numbers:
        of_blocks, of_windows, *_ = _seeds(seed)
        block, window = np.divmod(places - self._file_firsts[file], self._windows)
        block += self._block_firsts[file]
        turn = permuted(block, epochs, of_blocks, self._block_count, inverse=True)
        groups = _Parts(self._block_count, self._group_count, self._windows)
        return groups.permuted(turn * self._windows + window, epochs, of_windows, inverse=True)

    def _windows_in_rests(self, index: Numbers, epochs: Numbers, seed: int) -> Numbers:
        *_, of_windows = _seeds(seed)
        chunks = _Parts(self._rest_count, self._chunk_count, 1)
        turn = index - self._block_count * self._windows
        found = np.empty((2, index.size), dtype=np.int64)
        found[1] = chunks.permuted(turn, epochs, of_windows)
        for epoch, at in _by_epoch(epochs):
            rests = self._rests_of(seed, epoch)
            turn = np.searchsorted(rests.ends, found[1, at], side="right")
            found[0, at] = rests.files[turn]
            found[1, at] += rests.shifts[turn]
        return found

    def _indices_in_rests(
        self, places: Numbers, file: Numbers, epochs: Numbers, seed: int
    ) -> Numbers:
        *_, of_windows = _seeds(seed)
        window = places - self._rest_firsts[file]
        for epoch, at in _by_epoch(epochs):
            window[at] += self._rests_of(seed, epoch).firsts[self._rest_numbers[file[at]]]
        chunks = _Parts(self._rest_count, self._chunk_count, 1)
        found = chunks.permuted(window, epochs, of_windows, inverse=True)
        return self._block_count * self._windows + found

    def _rests(self, seed: int, epoch: int) -> _Rests:
        _, _, of_files, _ = _seeds(seed)
        each = np.arange(self._rest_files.size)
        numbers = permuted(each, np.full_like(each, epoch), of_files, each.size)
        ends = np.cumsum(self._rest_windows[numbers])
        begins = ends - self._rest_windows[numbers]
        firsts = np.empty_like(begins)
        firsts[numbers] = begins
        files = self._rest_files[numbers]
        shifts = (self._rest_firsts - self._file_firsts)[files] - begins
        return _Rests(files, ends, shifts, firsts)


class _Rests(NamedTuple):
    """The rests of an epoch, one after another in a permutation. Files with a rest are numbered
    from 0.

    files: int64[rests], the file whose rest comes in each turn.  ends: int64[rests], end of its
    windows.  shifts: int64[rests], what to add to such a window to have its number within the file.
    firsts: int64[rests], the first window of the rest of each file, by its number.
    """

    files: Numbers
    ends: Numbers
    shifts: Numbers
    firsts: Numbers


class _Parts(NamedTuple):
    """The range [0, units * unit) in parts, each of a whole number of units; these numbers differ
    by at most one.
    """

    units: int
    parts: int
    unit: int

    def part_of(self, point: int) -> tuple[int, int]:
        """Return the first unit of the part of a point, and the one behind its last."""
        least, longer = divmod(self.units, self.parts)
        place, end = point // self.unit, longer * (least + 1)
        if place < end:
            first = place // (least + 1) * (least + 1)
            return first, first + least + 1
        first = end + (place - end) // least * least
        return first, first + least

    def permuted(
        self, points: Numbers, epochs: Numbers, seed: int, *, inverse: bool = False
    ) -> Numbers:
        """Return where the permutations of the parts map points; each stays within its part.

        points: int64[n], each in [0, units * unit).  epochs: int64[n]; each part has another
        permutation in each epoch.  inverse: undoes it.
        """
        least, longer = divmod(self.units, self.parts)
        place, end = points // self.unit, longer * (least + 1)

        def within(part: Numbers, firsts: Numbers, size: int, at: Numbers | slice) -> Numbers:
            first = firsts * self.unit
            turns = epochs[at] * self.parts + part
            own = points[at] - first
            return first + permuted(own, turns, seed, size * self.unit, inverse=inverse)

        def of_longer(at: Numbers | slice) -> Numbers:
            part = place[at] // (least + 1)
            return within(part, part * (least + 1), least + 1, at)

        def of_others(at: Numbers | slice) -> Numbers:
            part = longer + (place[at] - end) // least
            return within(part, part * least + longer, least, at)

        return _split(place < end, of_longer, of_others)


def _by_epoch(epochs: Numbers) -> list[tuple[int, Numbers | slice]]:
    """Return each epoch, and at which places of an array it is.  epochs: int64[n], n at least 1."""
    first = int(epochs[0])
    if not np.any(epochs != first):
        return [(first, slice(None))]
    return [(epoch, np.flatnonzero(epochs == epoch)) for epoch in np.unique(epochs).tolist()]


def _split(is_first: npt.NDArray[np.bool_], first: _Of, other: _Of) -> Numbers:
    """Return what one of two functions returns for each point, int64[..., n], given which of the n
    points are its own. There is at least one.
    """
    count = int(np.count_nonzero(is_first))
    if count in (0, is_first.size):
        return first(slice(None)) if count else other(slice(None))
    places = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    parts = [function(at) for function, at in zip((first, other), places, strict=True)]
    found = np.empty((*parts[0].shape[:-1], is_first.size), dtype=np.int64)
    for at, part in zip(places, parts, strict=True):
        found[..., at] = part
    return found


@lru_cache(64)
def _seeds(seed: int) -> tuple[int, ...]:
    """Return the seeds of the four permutations: of blocks, of the windows of groups, of files with
    a rest, of the windows of rests.
    """
    numbers = np.arange(_FIRST_SUBKEY, _FIRST_SUBKEY + 4, dtype=np.uint64)
    return tuple(mix(mix(numbers) ^ np.uint64(seed)).tolist())


ORDER = Blocks()
