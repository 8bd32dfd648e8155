"""The blocks of the objects of one dataset that are in the cache, and the copy of rows out of it.

A row is copied from there if all of its blocks are in it. Which ones streams need is noted too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..bytes import ByteArray, Extents, Numbers
from ..local import syscalls
from ..local.mapped_bytes import byte_ranges, major_faults, whole_pages
from ..local.readahead import ReadAhead
from .slab import BLOCK_BYTES, SLOT_BYTES, TAIL_BYTES, ContentHash, Slab

ENDED, FOLLOWING, PRESENT = 1, 2, 3
"""Priorities of blocks: of the groups of streams that have ended, of those that come next, and of
those that streams are in."""

_TRIES = 2
_PAGES_SAMPLED = 8

_Slots = npt.NDArray[np.int32]


class CachedObject(Protocol):
    """What the cache needs to know of an object."""

    def identity(self, fingerprint: bytes) -> str:
        """Return a text that no other content has; "" if a change of it might not be seen.

        fingerprint: of its dataset.
        """

    @property
    def content_bytes(self) -> int:
        """Return how many bytes of tokens it has."""


class _Known(NamedTuple):
    """Where the blocks of a dataset were at a moment.

    slots: int32[blocks], -1 if a block is not cached.  evictions: the slab's count at that moment.
    """

    slab: Slab | None
    evictions: int
    slots: _Slots


class _Parts(NamedTuple):
    """Extents, cut where blocks end: those of the n-th begin at first[n].

    first: None if each extent is one part, as nearly always: a gather of 32 rows of 2,049 tokens
    took 163 us in place of 270 then (2 shared cores, 2026-11).  block: numbers in the dataset.  at:
    where they begin in their block.  size_bytes: each int64; or one number, if all have it.
    """

    first: Numbers | None
    block: Numbers
    at: Numbers
    size_bytes: Numbers | int

    def of_extents(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each extent whether all of its parts have a flag."""
        return flags if self.first is None else np.logical_and.reduceat(flags, self.first)

    @property
    def counts(self) -> Numbers | int:
        """How many parts each extent has."""
        return 1 if self.first is None else np.diff(self.first, append=self.block.size)


class CachedBlocks:
    """Blocks of a dataset, numbered over its objects. One thread changes which are cached; any
    thread may copy.

    objects: the hash of each object; None of one that is not cached.  first_block: int64[objects +
    1].  priorities: int8[blocks], how much streams need each; 0 if none does.  missing_count:
    blocks that are not cached.
    """

    def __init__(self, objects: Sequence[CachedObject], fingerprint: bytes) -> None:
        """Take the objects of a dataset; none of their blocks is cached yet.

        fingerprint: of the dataset.
        """
        identities = [each.identity(fingerprint) for each in objects]
        self.objects = [_hash(each) if each else None for each in identities]
        self._content_bytes = np.array([each.content_bytes for each in objects], dtype=np.int64)
        counts = -(-self._content_bytes // BLOCK_BYTES)
        self.first_block = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        self.block_count = int(self.first_block[-1])
        is_cached = np.array([each is not None for each in self.objects])
        self.is_cacheable = np.repeat(is_cached, counts)
        self.priorities = np.zeros(self.block_count, dtype=np.int8)
        self.hits = self.misses = self.row_bytes = 0
        """Rows that were copied and that were not, and bytes of both; of several threads without a
        lock, so that a few may not be counted."""
        self.set_slots(None, {})
        self.readahead = ReadAhead(self)

    # --- which blocks are cached: one thread ---

    def set_slots(
        self, slab: Slab | None, places: dict[ContentHash, tuple[Numbers, Numbers]]
    ) -> None:
        """Take over what is cached.  slab: None if nothing is.  places: int64[n] each, numbers of
        the blocks of an object, and their slots.
        """
        slots = np.full(self.block_count, -1, dtype=np.int32)
        for file, owner in enumerate(self.objects):
            if owner is not None and owner in places:
                block, slot = places[owner]
                within = block < self.first_block[file + 1] - self.first_block[file]
                slots[self.first_block[file] + block[within]] = slot[within]
        self.missing_count = int(np.count_nonzero(slots < 0))
        # At once: who copies reads both.
        self._known = _Known(slab, -1 if slab is None else slab.known_evictions, slots)

    def set_slot(self, block: int, slot: int) -> None:
        """Note the slot of a block; -1 if it is not cached any more."""
        slots = self._known.slots
        self.missing_count += (slot < 0) - (int(slots[block]) < 0)
        slots[block] = slot

    def trust_slots(self, evictions: int) -> None:
        """Trust all slots that are known here, at a count of the slab."""
        self._known = self._known._replace(evictions=evictions)

    @property
    def slots(self) -> _Slots:
        """Where each block is, -1 if it is not cached."""
        return self._known.slots

    def range_of(self, block: int) -> tuple[int, int, int]:
        """Return the file of a block, and where it begins and ends in its tokens, in bytes."""
        file = int(np.searchsorted(self.first_block, block, side="right")) - 1
        first = (block - int(self.first_block[file])) * BLOCK_BYTES
        end = min(first + BLOCK_BYTES + TAIL_BYTES, int(self._content_bytes[file]))
        return file, first, end

    # --- rows: any thread ---

    def blocks_of(self, extents: Extents) -> Numbers:
        """Return the block of each extent, int64[n]; -1 if it is in several, or not cacheable."""
        parts = self._parts(extents)
        block = parts.block if parts.first is None else parts.block[parts.first]
        is_whole = np.equal(parts.counts, 1)
        return np.where(is_whole & self.is_cacheable[block], block, -1)

    def blocks_in(self, extents: Extents) -> Numbers:
        """Return all blocks of extents of any size, int64[n]."""
        return self._parts(extents).block

    def are_cached(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Return which extents are cached, bool[n]."""
        parts = self._parts(extents)
        return parts.of_extents(self._known.slots[parts.block] >= 0)

    def copy(self, extents: Extents, target: ByteArray) -> npt.NDArray[np.bool_] | None:
        """Copy the extents that are cached into memory, and write zeros over all the rest of it.

        Returns: which ones were copied, bool[n]; None if none was, and nothing was written.
        """
        parts = self._parts(extents)
        for _ in range(_TRIES):
            slab, evictions, slots = self._known
            if slab is None:
                return None
            slot = slots[parts.block]
            copied = parts.of_extents(slot >= 0)
            count = int(np.count_nonzero(copied))
            if not count:
                break
            faults_before = major_faults()
            if not slab.copy(_ranges(slab, extents, parts, slot, copied, target.size), target):
                break  # it is truncated
            if slab.evictions == evictions:
                self.readahead.observe(major_faults() - faults_before)
                self.hits += count
                self.misses += copied.size - count
                return copied
        self.misses += extents.file.size
        return None

    def _parts(self, extents: Extents) -> _Parts:
        block = self.first_block[extents.file] + extents.first_byte // BLOCK_BYTES
        at = extents.first_byte % BLOCK_BYTES
        ends = at + extents.size_bytes
        if int(ends.max(initial=0)) <= BLOCK_BYTES + TAIL_BYTES:
            return _Parts(None, block, at, extents.size_bytes)
        size = extents.sizes
        counts = np.maximum(1, -(-(ends - TAIL_BYTES) // BLOCK_BYTES))
        first = np.cumsum(counts) - counts
        whole = np.repeat(np.arange(counts.size), counts)
        number = np.arange(whole.size) - first[whole]
        begins = np.where(number == 0, 0, number * BLOCK_BYTES - at[whole])
        is_last = number == counts[whole] - 1
        ends = np.where(is_last, size[whole], (number + 1) * BLOCK_BYTES - at[whole])
        at = np.where(number == 0, at[whole], 0)
        return _Parts(first, block[whole] + number, at, ends - begins)

    # --- what is cached, and not in memory ---

    def seem_resident(self, extents: Extents) -> bool:
        """Return whether a sample of extents that are cached is in memory."""
        pages = self._pages(extents.sample())
        return all(syscalls.residency(*each).all() for each in pages[:_PAGES_SAMPLED].tolist())

    def read_ahead(self, extents: Extents) -> None:
        """Make the kernel start to read extents that are cached."""
        pages = self._pages(extents)
        if len(pages) and not syscalls.read_ahead(pages):
            syscalls.read_ahead_singly(pages)

    def _pages(self, extents: Extents) -> syscalls.Ranges:
        parts, (slab, _, slots) = self._parts(extents), self._known
        slot = slots[parts.block]
        if slab is None:
            return np.empty((0, 2), dtype=np.uint64)
        ranges = _addresses(slab, slot, parts)
        return whole_pages(ranges[slot >= 0])


def _hash(identity: str) -> ContentHash:
    found = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:16], "little")


def _addresses(slab: Slab, slot: _Slots, parts: _Parts) -> syscalls.Ranges:
    first = slab.first_address + slot.astype(np.int64) * SLOT_BYTES
    return byte_ranges(first + parts.at, parts.size_bytes)


def _ranges(
    slab: Slab,
    extents: Extents,
    parts: _Parts,
    slot: _Slots,
    copied: npt.NDArray[np.bool_],
    target_bytes: int,
) -> syscalls.Ranges:
    """Return what to copy into all of a target: parts of blocks; zeros in place of extents that are
    not cached, and in gaps.
    """
    ranges = _addresses(slab, slot, parts)
    before, _, sizes = extents.gaps(target_bytes)
    if before.size or np.count_nonzero(copied) < copied.size:
        most = max(int(np.max(parts.size_bytes)), int(sizes.max(initial=0)))
        zeros = _zeros(most)
        ranges[np.repeat(~copied, parts.counts), 0] = zeros
        if before.size:
            gaps = byte_ranges(np.full(sizes.size, zeros), sizes)
            where = before if parts.first is None else np.append(parts.first, slot.size)[before]
            ranges = np.insert(ranges, where, gaps, axis=0)
    return ranges


_ZEROS: list[ByteArray] = [np.zeros(2 * BLOCK_BYTES, dtype=np.uint8)]


def _zeros(size_bytes: int) -> int:
    """Return the address of zeros, which stay where and what they are."""
    zeros = _ZEROS[-1]
    if zeros.size < size_bytes:  # of a giant row
        zeros = np.zeros(1 << size_bytes.bit_length(), dtype=np.uint8)
        _ZEROS.append(zeros)
    return int(zeros.ctypes.data)
