"""The cache of objects of a process: which blocks are fetched whole and when, and which make room.

A thread does it, behind all rows. If the cache has room for all blocks of the datasets, they are
fetched in order. If not, those of which rows are asked for again and again, as the groups of
`blocks` are; the oldest make room. In any case blocks have at most as many bytes as the cache has,
once, and as the rows that were sent: an order that jumps all over a corpus costs twice its rows at
most, and not 256 times.

It begins with the first row, and stops when none was asked for in a minute. The same thread reads
blocks again, each about once a day, and fetches those whose checksum has changed.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np

from ...runtime.exceptions import log_exception
from ..bytes import Numbers
from .cached_blocks import TOUCHES, CachedBlocks
from .fetcher import Fetch, fetcher
from .slab import BLOCK_BYTES, Object, Slab

_LOG = logging.getLogger("tokenfeed.server")

_PAUSE_SECONDS = 0.2
_FETCHES = 16
"""Blocks on their way at once: a store gives some 80 MB/s to each."""
_FETCH_DUE_SECONDS = 3600.0
"""Later than any row: those that wait are fetched first."""
_COMMIT_SECONDS = 1.0
_COMMIT_BLOCKS = 64
"""Blocks can be read once they are on the disk; one wait for it is for up to this many."""
_REFRESH_SHARE = 0.05
"""Of the time, for reading what another process has cached: a second for a table of terabytes."""
IDLE_SECONDS = 60.0
_RETRY_SECONDS = 10.0
SCRUB_SECONDS = 86_400.0
"""In which each block is read and compared with its checksum once."""
_STREAM = -1
"""The stream of its fetches; no thread has this number."""
_NICENESS = 10


class CachedDataset(Protocol):
    """What the cache needs of the files of a dataset."""

    @property
    def cached(self) -> CachedBlocks | None:
        """Return its blocks."""

    @property
    def failed(self) -> bool:
        """Return whether it is lost, so that nothing of it is fetched."""

    def block_fetch(self, file: int, first_byte: int, end_byte: int) -> Fetch:
        """Return what fetches token bytes of a file."""


class CacheCounts(NamedTuple):
    """size_bytes: of the slab, 0 if there is none any more.  blocks, cached_blocks: of the
    datasets, and those that are cached.  hits, misses: rows that were copied from it, or not.
    damaged: blocks whose checksum had changed.
    """

    size_bytes: int = 0
    blocks: int = 0
    cached_blocks: int = 0
    hits: int = 0
    misses: int = 0
    damaged: int = 0


class _Block(NamedTuple):
    """A block of a dataset.  number: of CachedBlocks."""

    files: CachedDataset
    blocks: CachedBlocks
    number: int

    @property
    def is_cached(self) -> bool:
        return bool(self.blocks.slots[self.number] >= 0)

    @property
    def place(self) -> tuple[Object, int]:
        """Its object, and its number there."""
        file, first, _ = self.blocks.range_of(self.number)
        owner = self.blocks.objects[file]
        assert owner is not None
        return owner, first // BLOCK_BYTES


class ObjectCache:
    """The cache of all datasets of a process in object stores."""

    def __init__(self, slab: Slab, datasets: Sequence[CachedDataset]) -> None:
        """Use a slab for datasets which have blocks, and start the thread.

        Raises: RuntimeError if none can be started.
        """
        self._slab: Slab | None = slab
        self._slab_bytes = slab.size_bytes
        self._datasets = [(each, each.cached) for each in datasets if each.cached is not None]
        self._blocks = [blocks for _, blocks in self._datasets]
        self._owners: dict[Object, list[tuple[CachedBlocks, int]]] = {}
        for blocks in self._blocks:
            for file, owner in enumerate(blocks.objects):
                if owner is not None:
                    found = self._owners.setdefault(owner, [])
                    found.append((blocks, int(blocks.first_block[file])))
        self.block_count = sum(int(each.is_cacheable.sum()) for each in self._blocks)
        self.fits = self.block_count <= slab.slot_count
        self._wanted: deque[_Block] = deque(maxlen=slab.slot_count)
        self._touch_count = 0
        self._in_flight: deque[tuple[_Block, Fetch]] = deque()
        self._fetched_bytes = self._damaged = self._reported = 0
        self._used_at = -IDLE_SECONDS
        self._paused_until = self._refresh_at = 0.0
        self._scrub_at = time.monotonic()
        self._scrubbed = random.randrange(slab.slot_count)
        self._in_order = self._missing()
        self._know_all(slab)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-cache", daemon=True)
        self._thread.start()

    # --- any thread ---

    def use(self) -> None:
        """Note that rows are asked for."""
        self._used_at = time.monotonic()

    def touch(self, files: CachedDataset, file: int, first_byte: int) -> None:
        """Note a GET of rows.  first_byte: of it, counted from the first token of its file."""
        blocks = files.cached
        if self.fits or blocks is None:
            return
        if blocks.touch(file, first_byte):
            self._wanted.append(_Block(files, blocks, blocks.block_of(file, first_byte)))
        self._touch_count += 1

    @property
    def counts(self) -> CacheCounts:
        """What is cached, and what was."""
        return CacheCounts(
            0 if self._slab is None else self._slab_bytes,
            self.block_count,
            sum(each.slots.size - each.missing_count for each in self._blocks),
            sum(each.hits for each in self._blocks),
            sum(each.misses for each in self._blocks),
            self._damaged,
        )

    def close(self) -> None:
        """End the thread. Rows are still copied from what is cached."""
        self._closed.set()
        self._thread.join(2 * _COMMIT_SECONDS)

    # --- its thread ---

    def _run(self) -> None:
        with suppress(OSError):  # of this thread alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._closed.wait(0 if self._in_flight else _PAUSE_SECONDS):
            if (slab := self._slab) is None:
                return
            try:
                self._act(slab)
            except OSError as error:
                self._paused_until = time.monotonic() + _RETRY_SECONDS
                self._in_flight.clear()
                slab.distrust()
                slab.end_lease()
                _LOG.error("object cache failed, trying again later reason=%s", error.strerror)
            except Exception:  # noqa: BLE001 - rows need no cache
                log_exception(logging.ERROR, "object cache given up")
                self._give_up()
        if self._slab is not None:
            self._slab.end_lease()

    def _give_up(self) -> None:
        self._know_all(None)
        slab, self._slab = self._slab, None
        if slab is not None:
            slab.end_lease()

    def _act(self, slab: Slab) -> None:
        """Do what there is to do for about a second.  Raises: OSError."""
        if slab.is_gone:
            _LOG.error("object cache deleted or truncated: rows are fetched without it")
            self._give_up()
            return
        now = time.monotonic()
        if not slab.is_leased and slab.has_news and now >= self._refresh_at:
            self._refresh(slab)
        if now < self._paused_until:
            return
        is_used = now - self._used_at < IDLE_SECONDS
        fills = is_used and (self._wants_more() or bool(self._in_flight))
        scrubs = now - self._scrub_at >= SCRUB_SECONDS / slab.slot_count
        if not (fills or scrubs):
            self._in_flight.clear()
            slab.end_lease()
            return
        if not slab.take_lease():
            return
        if fills and slab.begin_writes():
            self._know_all(slab)
        elif slab.has_news:
            self._refresh(slab)
        if fills:
            self._fill(slab)
        if scrubs:
            self._scrub(slab, now)
        self._report(slab)

    def _refresh(self, slab: Slab) -> None:
        began = time.monotonic()
        slab.refresh()
        self._know_all(slab)
        ended = time.monotonic()
        self._refresh_at = ended + (ended - began) / _REFRESH_SHARE

    def _know_all(self, slab: Slab | None) -> None:
        places: dict[Object, tuple[Numbers, Numbers]] = {}
        if slab is not None:
            used = np.flatnonzero(slab.entries["stamp"])
            found = slab.entries[used]
            order = np.lexsort((found["object"][:, 1], found["object"][:, 0]))
            owners = found["object"][order]
            begins = np.flatnonzero(np.any(np.diff(owners, axis=0, prepend=~owners[:1]), axis=1))
            ends = np.append(begins, order.size)[1:]
            for first, end in zip(begins, ends, strict=True):
                owner = int(owners[first, 0]), int(owners[first, 1])
                each = order[first:end]
                places[owner] = found["block"][each].astype(np.int64), used[each]
        for blocks in self._blocks:
            blocks.know(slab, places)

    # --- blocks that are fetched ---

    def _missing(self) -> Iterator[_Block]:
        """Yield the blocks that are not cached, in order."""
        for files, blocks in self._datasets:
            for number in np.flatnonzero((blocks.slots < 0) & blocks.is_cacheable).tolist():
                found = _Block(files, blocks, number)
                if not (files.failed or found.is_cached):
                    yield found

    def _wants_more(self) -> bool:
        if self._fetched_bytes >= self._bytes_max:
            return False
        return next(self._missing(), None) is not None if self.fits else bool(self._wanted)

    @property
    def _bytes_max(self) -> int:
        return self._slab_bytes + sum(each.row_bytes for each in self._blocks)

    def _next(self) -> _Block | None:
        """Return the block that is to be fetched next; None if there is none."""
        if self._fetched_bytes >= self._bytes_max:
            return None
        if self.fits:
            return next(self._in_order, None)
        while self._wanted:
            found = self._wanted.popleft()
            if not (found.is_cached or found.files.failed):
                return found
        return None

    def _fill(self, slab: Slab) -> None:
        """Fetch blocks for a second, and write them.  Raises: OSError."""
        if self._touch_count >= TOUCHES * slab.slot_count:
            self._touch_count = 0
            for blocks in self._blocks:
                blocks.touches[:] = 0
        if not self._in_flight:  # some may have been left out
            self._in_order = self._missing()
        ends, written = time.monotonic() + _COMMIT_SECONDS, dict[int, _Block]()
        free = deque(np.flatnonzero(slab.entries["stamp"] == 0).tolist())
        # A small slab has slots that may be emptied beside those that were just written to.
        most = min(_COMMIT_BLOCKS, slab.slot_count // 2)
        while time.monotonic() < ends and len(written) < most:
            self._submit()
            if not self._in_flight or self._closed.is_set():
                break
            block, fetch = self._in_flight[0]
            if not fetch.wait(ends - time.monotonic()):
                break
            self._in_flight.popleft()
            if fetch.error is not None:
                left = [(block, fetch), *self._in_flight]
                self._fetched_bytes -= sum(each.size_bytes for _, each in left)
                if not self.fits:
                    self._wanted.extendleft(each for each, _ in reversed(left[1:]))
                self._in_flight.clear()
                self._paused_until = time.monotonic() + _RETRY_SECONDS
                reason = getattr(fetch.error, "strerror", None) or fetch.error
                _LOG.warning("block not fetched, trying again later reason=%s", reason)
                break
            if fetch.content is None or block.is_cached:
                continue
            if not free:
                free.extend(self._evicted(slab, list(written)))
            slot = free.popleft()
            slab.write(slot, *block.place, fetch.content)
            written[slot] = block
        slab.commit()
        for slot, block in written.items():
            owner, number = block.place
            for blocks, first in self._owners[owner]:
                blocks.know_slot(first + number, slot)

    def _submit(self) -> None:
        made = []
        while len(self._in_flight) < _FETCHES and (block := self._next()) is not None:
            fetch = block.files.block_fetch(*block.blocks.range_of(block.number))
            self._in_flight.append((block, fetch))
            self._fetched_bytes += fetch.size_bytes
            made.append(fetch)
        if made:
            fetcher().submit(made, _FETCH_DUE_SECONDS, _STREAM)

    def _evicted(self, slab: Slab, written: Sequence[int]) -> list[int]:
        """Make room, and return the slots: blocks of no dataset of this process first, then those
        that were cached first.  written: slots that are left out, of blocks that are not known yet.
        Raises: OSError.
        """
        is_own = np.zeros(slab.slot_count, dtype=bool)
        for blocks in self._blocks:
            is_own[blocks.slots[blocks.slots >= 0]] = True
        chosen = np.lexsort((slab.entries["stamp"], is_own))
        chosen = chosen[~np.isin(chosen, written)]
        most = slab.slot_count if not self.fits else int(np.count_nonzero(~is_own))
        count = min(most, slab.slot_count // 8, max(_COMMIT_BLOCKS, slab.slot_count // 100))
        self._forget(slab, chosen[: max(1, count)])
        return chosen[: max(1, count)].tolist()  # type: ignore[no-any-return]

    def _forget(self, slab: Slab, slots: Numbers) -> None:
        """Empty slots.  Raises: OSError."""
        for entry in slab.entries[slots]:
            owner = int(entry["object"][0]), int(entry["object"][1])
            for blocks, first in self._owners.get(owner, ()):
                blocks.know_slot(first + int(entry["block"]), -1)
        slab.evict(slots)
        for blocks in self._blocks:
            blocks.know_evictions(slab.known_evictions)

    # --- blocks that are read again ---

    def _scrub(self, slab: Slab, now: float) -> None:
        """Compare some blocks with their checksums, and empty those that differ.  Raises: OSError.

        Their number follows from the time since the last ones, as if no more than a minute.
        """
        seconds = min(now - self._scrub_at, 60.0)
        count = max(1, round(slab.slot_count * seconds / SCRUB_SECONDS))
        due = self._scrub_at + count * SCRUB_SECONDS / slab.slot_count
        self._scrub_at = max(due, now - 60.0)
        slots = np.arange(self._scrubbed, self._scrubbed + count) % slab.slot_count
        self._scrubbed = int(slots[-1] + 1) % slab.slot_count
        damaged = damaged_of(slab, slots)
        if damaged.size:
            self._damaged += damaged.size
            _LOG.error("object cache has damaged blocks=%d: fetched again", damaged.size)
            self._forget(slab, damaged)

    def _report(self, slab: Slab) -> None:
        """Log each tenth of the datasets that is cached."""
        if not self.fits or not self.block_count:
            return
        cached = self.counts.cached_blocks
        tenth = 10 * cached // self.block_count
        if tenth > self._reported:
            _LOG.info(
                "object cache filled blocks=%d of=%d fetched_bytes=%d",
                *(cached, self.block_count, self._fetched_bytes),
            )
        self._reported = tenth


def damaged_of(slab: Slab, slots: Numbers) -> Numbers:
    """Return those of some slots that hold a block whose checksum has changed."""
    used = slots[slab.entries["stamp"][slots] != 0]
    found = [slot for slot in used.tolist() if not slab.is_intact(slot)]
    return np.array(found, dtype=np.int64)
