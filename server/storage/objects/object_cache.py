"""The cache of objects of a process: which blocks are fetched whole and when, and which make room.

A thread does it, behind all rows. If the cache has room for all blocks of the datasets, they are
fetched in order, those of rows that are asked for first. If not, those of the groups that streams
of `blocks` are in, and of the next ones; what no stream is in any more makes room. So each block is
fetched once, whatever the pace of the rows: few of them are fetched by GETs of their own before
their block (EARLY_SHARE), and others wait for it. In any case blocks have at most as many bytes as
the cache has, once, and as the rows that were sent.

It begins a second after the first row, or when a row waits for a block, so that a first batch has
the store to itself. It stops when no row was asked for in a minute. The same thread reads blocks
again, each about once a day, and fetches those whose checksum has changed.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest

from ...runtime.exceptions import log_exception
from ..bytes import Numbers
from .cached_blocks import ENDED, FOLLOWING, PRESENT, CachedBlocks
from .counts import CacheCounts
from .fetcher import Fetch, fetcher
from .slab import BLOCK_BYTES, ContentHash, Slab, size_of

_LOG = logging.getLogger("tokenfeed.server")

_PAUSE_SECONDS = 0.2
_FETCHES = 16
"""Blocks on their way at once, which no row waits for: a store gives some 80 MB/s to each."""
_COMING_MAX = 128
"""Blocks on their way, and in memory until they are on the disk."""
_FETCH_DUE_SECONDS = 3600.0
"""Later than any row: those that wait are fetched first."""
EARLY_SHARE, EARLY_SHARE_OF_GROUPS = 1 / 16, 1 / 64
"""Bytes of rows that are fetched before their block, by those of blocks: of a corpus that fits, and
of groups. The first rows of a server may have a quarter of what that is of the whole cache."""
BLOCK_WAIT_SECONDS = 5.0
"""How long a row waits until its block can be asked for, before it is fetched by itself."""
_ARRIVAL_SECONDS = 0.02
_COMMIT_SECONDS = 1.0
_COMMIT_BLOCKS = 64
"""Blocks can be read once they are on the disk; one wait for it is for up to this many."""
_REFRESH_SHARE = 0.05
"""Of the time, for reading what another process has cached: a second for a table of terabytes."""
_FIRST_ROWS_SECONDS = 1.0
"""How long only rows are fetched, after the first one: whole blocks would delay a first batch."""
IDLE_SECONDS = 60.0
GRACE_SECONDS = 600.0
"""How long groups of a stream that has ended stay, unless others need the room: it may go on."""
_RETRY_SECONDS = 10.0
_LOG_SECONDS = 30.0
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


class _Block(NamedTuple):
    """A block of a dataset, equal to that of another one with the same object.  number: of
    CachedBlocks.
    """

    files: CachedDataset
    blocks: CachedBlocks
    number: int

    @property
    def is_cached(self) -> bool:
        return bool(self.blocks.slots[self.number] >= 0)

    @property
    def place(self) -> tuple[ContentHash, int]:
        """Its object, and its number there."""
        file, first, _ = self.blocks.range_of(self.number)
        owner = self.blocks.objects[file]
        assert owner is not None
        return owner, first // BLOCK_BYTES

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Block) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)


@dataclass
class _Group:
    """Blocks that streams read together.  numbers: of blocks, int64[n].

    priorities: PRESENT for the streams that are in it, FOLLOWING for those that read it next.
    used_at, used_as: when it had one last, and the priority that it had then.
    """

    blocks: CachedBlocks
    numbers: Numbers
    priorities: weakref.WeakKeyDictionary[object, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    used_at: float = 0.0
    used_as: int = ENDED


class ObjectCache:
    """The cache of all datasets of a process in object stores."""

    def __init__(self, slab: Slab, datasets: Sequence[CachedDataset]) -> None:
        """Use a slab for datasets which have blocks, and start the thread.

        Raises: RuntimeError if none can be started.
        """
        self._slab: Slab | None = slab
        self._slab_bytes = slab.size_bytes
        self._slot_count = slab.slot_count
        self._datasets = [(each, each.cached) for each in datasets if each.cached is not None]
        self._blocks = [blocks for _, blocks in self._datasets]
        self._owners: dict[ContentHash, list[tuple[CachedBlocks, int]]] = {}
        self._is_counted: list[npt.NDArray[np.bool_]] = []
        """bool[blocks] of each dataset: those of an object of several datasets once."""
        for blocks in self._blocks:
            is_first = []
            for file, owner in enumerate(blocks.objects):
                is_first.append(owner is not None and owner not in self._owners)
                if owner is not None:
                    found = self._owners.setdefault(owner, [])
                    found.append((blocks, int(blocks.first_block[file])))
            self._is_counted.append(np.repeat(is_first, np.diff(blocks.first_block)))
        self.block_count = sum(int(each.sum()) for each in self._is_counted)
        self.fits = self.block_count <= slab.slot_count
        self._damaged = self._reported = 0
        self._used_at, self._is_idle = -IDLE_SECONDS, True
        self._paused_until = self._refresh_at = self._fills_at = 0.0
        self._scrub_at = time.monotonic()
        self._scrubbed = random.randrange(slab.slot_count)
        self._know_all(slab)
        self._changed = threading.Condition()  # guards what follows
        self._fills: bool | None = None
        """Whether this process fetches blocks now; None if the thread is to find out."""
        self._coming: dict[_Block, Fetch] = {}
        """Blocks on their way, and those that are here and not on the disk yet."""
        self._soon: dict[_Block, None] = {}
        """Blocks of rows that are needed soon, in order: at most as many as there are slots."""
        self._groups: dict[tuple[int, bytes], _Group] = {}
        self._unreadable: dict[ContentHash, float] = {}
        """Objects of which a block was not fetched, and until when none is tried."""
        self._logged_at = -_LOG_SECONDS
        self._fetched_bytes = self._early_bytes = 0
        self._in_order = self._missing()
        self._woken, self._is_closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="tokenfeed-cache", daemon=True)
        self._thread.start()

    # --- any thread ---

    def note_use(self) -> None:
        """Note that rows are asked for."""
        self._used_at = time.monotonic()
        if self._is_idle:
            self._fills_at = self._used_at + _FIRST_ROWS_SECONDS
            self._is_idle = False

    @property
    def takes_blocks(self) -> bool:
        """Whether blocks may be fetched now, so that rows need few GETs of their own."""
        return self._fills is not False and (self.fits or bool(self._groups))

    def require_room(self, numbers: Numbers) -> None:
        """Raise InvalidRequest if there is not the room for the blocks of a group.  numbers:
        int64[n].
        """
        count = np.unique(numbers).size
        if count > self._slot_count and not self.fits:
            problem = f"reads {count} blocks of 1 MiB at a time, and the object cache of the"
            room = f"server has {self._slot_count}, so that they would be fetched again and again"
            options = f"--object-cache-bytes {size_of(2 * count)} or --object-cache none"
            cure = f"pass a smaller group_tokens, restart the server with {options}, or use"
            last = "order shuffled, with a GET for each row"
            raise InvalidRequest("order", f"{problem} {room}; {cure} {last}")

    def hold(
        self, owner: object, files: CachedDataset, present: Numbers, following: Numbers
    ) -> None:
        """Fetch the blocks of a group that a stream is in, and of the next one, as far as there is
        room, and keep them while it is there.

        owner: of the stream; its earlier call is void.  present, following: int64[n] each, numbers
        of blocks.
        """
        blocks = files.cached
        if self.fits or blocks is None or self._slab is None:
            return
        with self._changed:
            for group in self._groups.values():
                if group.blocks is blocks:
                    group.priorities.pop(owner, None)
            for read, priority in ((present, PRESENT), (following, FOLLOWING)):
                numbers = np.unique(read)
                key = id(blocks), numbers.tobytes()
                group = self._groups.setdefault(key, _Group(blocks, numbers))
                group.priorities.setdefault(owner, priority)  # both may be the same one
            self._prioritize()
            self._in_order = self._missing()
        self._woken.set()

    def wanted_rows(
        self, files: CachedDataset, numbers: Sequence[int], sizes: Sequence[int]
    ) -> list[bool]:
        """Return which rows are to be fetched ahead by themselves, of some that will be needed;
        blocks of others come soon.

        numbers: of the block of each row, -1 if it is in none or in several.  sizes: in bytes.
        """
        blocks, found = files.cached, []
        assert blocks is not None
        with self._changed:
            for number, size in zip(numbers, sizes, strict=True):
                block = _Block(files, blocks, number)
                is_apart = self._fills is False or not self._wants(block)
                if not is_apart and block not in self._coming:
                    is_apart = self._grants(size)
                    if not is_apart:
                        self._soon[block] = None
                found.append(is_apart)
        return found

    def fetch_of(
        self, files: CachedDataset, number: int, size_bytes: int, until: float | None
    ) -> Fetch | None:
        """Return what fetches the block that a row is in and waits for; None if the row is to be
        fetched by itself, or if its block is cached by now.

        number, size_bytes: of the block, and of the row.  until: how long to wait until the block
        can be asked for, if it is not on its way, by time.monotonic; None if it is not to be.
        """
        blocks = files.cached
        assert blocks is not None
        block = _Block(files, blocks, number)
        with self._changed:
            while True:
                fetch = self._coming.get(block)
                if fetch is not None or until is None:
                    return fetch
                if self._fills is False or block.is_cached or not self._wants(block):
                    return None
                if self._grants(size_bytes):
                    return None
                if self._fills and len(self._coming) < _COMING_MAX:
                    return self._begun([block], 0.0, threading.get_ident())[0]
                self._fills_at = 0.0
                self._woken.set()
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    return None

    @property
    def counts(self) -> CacheCounts:
        """What is cached, and what was."""
        return CacheCounts(
            0 if self._slab is None else self._slab_bytes,
            self.block_count,
            sum(
                int(np.count_nonzero(each.slots[is_counted] >= 0))
                for each, is_counted in zip(self._blocks, self._is_counted, strict=True)
            ),
            sum(each.hits for each in self._blocks),
            sum(each.misses for each in self._blocks),
            self._damaged,
        )

    def end(self) -> None:
        """Have the thread end. Rows are still copied from what is cached."""
        self._is_closed = True
        self._woken.set()

    def close(self) -> None:
        """End the thread, and wait for it for two seconds at most."""
        self.end()
        self._thread.join(2.0)

    # --- all below: with the lock ---

    def _wants(self, block: _Block) -> bool:
        """Return whether a block is fetched whole, unless it is cached."""
        blocks, number = block.blocks, block.number
        if number < 0 or self._fetched_bytes >= self._bytes_max:
            return False
        if not (self.fits or blocks.priorities[number] >= FOLLOWING):
            return False
        return not (block.files.failed or (self._unreadable and block.place[0] in self._unreadable))

    def _grants(self, size_bytes: int) -> bool:
        """Return whether a row may be fetched before its block, and count it then."""
        share = EARLY_SHARE if self.fits else EARLY_SHARE_OF_GROUPS
        first = min(self.block_count, self._slot_count) * BLOCK_BYTES // 4
        is_granted = self._early_bytes + size_bytes <= share * (self._fetched_bytes + first)
        self._early_bytes += size_bytes * is_granted
        return is_granted

    def _begun(self, blocks: Sequence[_Block], due_seconds: float, stream: int) -> list[Fetch]:
        """Begin to fetch blocks."""
        made = [each.files.block_fetch(*each.blocks.range_of(each.number)) for each in blocks]
        self._coming.update(zip(blocks, made, strict=True))
        self._fetched_bytes += sum(each.size_bytes for each in made)
        if made:
            fetcher().submit(made, due_seconds, stream)
        return made

    def _prioritize(self) -> None:
        """Find out again which blocks are held, as far as there is room: those of streams first,
        then those of streams that have ended, the last one first. These may be between two calls,
        so for a while their blocks are fetched as before.
        """
        now, room = time.monotonic(), self._slot_count
        for blocks in self._blocks:
            blocks.priorities[:] = 0
        groups = []
        for key, group in self._groups.items():
            priority = max(group.priorities.values(), default=ENDED)
            if priority != ENDED:
                group.used_at, group.used_as = now, priority
            groups.append((priority, group.used_at, group.used_as, key))
        groups.sort(key=lambda each: each[:3], reverse=True)
        for priority, used_at, used_as, key in groups:
            priorities, numbers = self._groups[key].blocks.priorities, self._groups[key].numbers
            more = numbers[priorities[numbers] == 0][:room]
            priorities[more] = used_as if now - used_at < IDLE_SECONDS else ENDED
            room -= more.size
            # What others have needs no group more, so that there are few of them.
            if priority == ENDED and (not more.size or now - used_at > GRACE_SECONDS):
                del self._groups[key]

    def _missing(self) -> Iterator[_Block]:
        """Yield the blocks that are to be fetched, in order."""
        for priority in (0,) if self.fits else (PRESENT, FOLLOWING):
            for files, blocks in self._datasets:
                is_missing = (blocks.slots < 0) & blocks.is_cacheable
                is_missing &= blocks.priorities >= priority
                if self._unreadable:
                    readable = [each not in self._unreadable for each in blocks.objects]
                    is_missing &= np.repeat(readable, np.diff(blocks.first_block))
                for number in np.flatnonzero(is_missing).tolist():
                    found = _Block(files, blocks, number)
                    if found not in self._coming and not found.is_cached and self._wants(found):
                        yield found

    def _wants_more(self, now: float) -> bool:
        self._unreadable = {key: end for key, end in self._unreadable.items() if end > now}
        if self._groups:
            self._prioritize()
        return bool(self._coming) or next(self._missing(), None) is not None

    def _next(self) -> _Block | None:
        """Return the block that is to be fetched next; None if there is none."""
        while self._soon:
            del self._soon[found := next(iter(self._soon))]
            if found not in self._coming and not found.is_cached and self._wants(found):
                return found
        return next(self._in_order, None)

    @property
    def _bytes_max(self) -> int:
        return self._slab_bytes + sum(each.row_bytes for each in self._blocks)

    # --- its thread ---

    def _run(self) -> None:
        with suppress(OSError):  # of this thread alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            self._woken.wait(0 if self._coming else _PAUSE_SECONDS)
            self._woken.clear()
            if self._is_closed or (slab := self._slab) is None:
                break
            try:
                self._act(slab)
            except OSError as error:
                self._paused_until = self._refresh_at = time.monotonic() + _RETRY_SECONDS
                self._fill_or_not(False)
                slab.distrust()
                slab.end_lease()
                _LOG.error("object cache failed, trying again later reason=%s", error.strerror)
            except Exception:  # noqa: BLE001 - rows need no cache
                log_exception(logging.ERROR, "object cache given up")
                self._give_up()
        self._fill_or_not(False)
        if self._slab is not None:
            self._slab.end_lease()

    def _give_up(self) -> None:
        self._know_all(None)
        slab, self._slab = self._slab, None
        self._fill_or_not(False)
        if slab is not None:
            slab.end_lease()

    def _fill_or_not(self, fills: bool | None) -> None:
        """Say whether blocks are fetched from now on. If not, rows wait for none."""
        with self._changed:
            self._fills = fills
            if not fills:
                self._coming.clear()
                self._soon.clear()
            self._changed.notify_all()

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
        self._is_idle = not is_used
        if is_used and now < self._fills_at:
            return
        with self._changed:  # or a block that is asked for meanwhile would be forgotten
            fills = is_used and self._wants_more(now)
            if not fills:
                self._fill_or_not(None)
        scrubs = now - self._scrub_at >= SCRUB_SECONDS / slab.slot_count
        if not (fills or scrubs):
            if not (is_used and self._groups):  # the next group is asked for soon
                slab.end_lease()
            return
        if not slab.take_lease():
            self._fill_or_not(False)
            return
        if fills and slab.begin_writes():
            self._know_all(slab)
        elif slab.has_news:
            self._refresh(slab)
        if fills:
            self._fill_or_not(True)
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
        places: dict[ContentHash, tuple[Numbers, Numbers]] = {}
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
            blocks.set_slots(slab, places)

    # --- blocks that are fetched ---

    def _fill(self, slab: Slab) -> None:
        """Fetch blocks for a second, and write them.  Raises: OSError."""
        ends, written = time.monotonic() + _COMMIT_SECONDS, dict[int, _Block]()
        free = np.flatnonzero(slab.entries["stamp"] == 0).tolist()
        with self._changed:
            self._in_order = self._missing()
        # A small slab has slots that may be emptied beside those that were just written to.
        most = min(_COMMIT_BLOCKS, slab.slot_count // 2)
        while time.monotonic() < ends and len(written) < most and not self._is_closed:
            if (arrived := self._arrived({*written.values()})) is None:
                break
            for block, fetch in arrived[: most - len(written)]:
                content = fetch.content
                is_needed = content is not None and not block.is_cached
                free = free or (self._evicted(slab, list(written)) if is_needed else [])
                if is_needed and free and content is not None:
                    slab.write(slot := free.pop(), *block.place, content)
                    written[slot] = block
                elif is_needed and written:  # what was written may make room, once it is known
                    most = 0
                    break
                else:
                    self._leave_out(block, fetch)
        slab.commit()
        for slot, block in written.items():
            owner, number = block.place
            for blocks, first in self._owners[owner]:
                blocks.set_slot(first + number, slot)
        self._forget_coming(written.values())

    def _arrived(self, written: set[_Block]) -> list[tuple[_Block, Fetch]] | None:
        """Ask for more blocks, and return those that are here, maybe after a moment; None if none
        is on its way.  written: which are left out.
        """
        with self._changed:
            away = sum(not each.is_done for each in self._coming.values())
            while away < _FETCHES and len(self._coming) < _COMING_MAX // 2:
                if (block := self._next()) is None:
                    break
                self._begun([block], _FETCH_DUE_SECONDS, _STREAM)
                away += 1
            coming = [each for each in self._coming.items() if each[0] not in written]
        if coming and not any(fetch.is_done for _, fetch in coming):
            coming[0][1].wait(_ARRIVAL_SECONDS)
        return [each for each in coming if each[1].is_done] if coming else None

    def _forget_coming(self, blocks: Iterable[_Block]) -> None:
        with self._changed:
            for block in blocks:
                self._coming.pop(block, None)
            self._changed.notify_all()

    def _leave_out(self, block: _Block, fetch: Fetch) -> None:
        """Do not cache what was fetched, or could not be: then its object is left in peace for a
        while, so that others come.
        """
        if fetch.error is not None:
            reason = getattr(fetch.error, "strerror", None) or fetch.error
            with self._changed:
                self._fetched_bytes -= fetch.size_bytes
                self._unreadable[block.place[0]] = time.monotonic() + _RETRY_SECONDS
            if time.monotonic() - self._logged_at >= _LOG_SECONDS:
                self._logged_at = time.monotonic()
                _LOG.warning("block not fetched, trying again later reason=%s", reason)
        self._forget_coming([block])

    def _evicted(self, slab: Slab, written: Sequence[int]) -> list[int]:
        """Make room, and return the slots: blocks of no dataset of this process first, then those
        without a priority, the oldest of each. Others stay: no more of them have one than there is
        room for.

        written: slots that are left out, of blocks that are not known yet.  Raises: OSError.
        """
        kind = np.zeros(slab.slot_count, dtype=np.int8)
        with self._changed:
            for blocks in self._blocks:
                is_cached = blocks.slots >= 0
                slots = blocks.slots[is_cached]
                kind[slots] = np.maximum(kind[slots], 1 + blocks.priorities[is_cached])
        kind[list(written)] = 1 + PRESENT
        chosen = np.lexsort((slab.entries["stamp"], kind))
        chosen = chosen[kind[chosen] <= (0 if self.fits else 1)]
        chosen = chosen[: max(1, min(slab.slot_count // 8, _COMMIT_BLOCKS))]
        if chosen.size:
            self._forget(slab, chosen)
        return chosen.tolist()  # type: ignore[no-any-return]

    def _forget(self, slab: Slab, slots: Numbers) -> None:
        """Empty slots.  Raises: OSError."""
        for entry in slab.entries[slots]:
            owner = int(entry["object"][0]), int(entry["object"][1])
            for blocks, first in self._owners.get(owner, ()):
                blocks.set_slot(first + int(entry["block"]), -1)
        slab.evict(slots)
        for blocks in self._blocks:
            blocks.trust_slots(slab.known_evictions)

    # --- blocks that are read again ---

    def _scrub(self, slab: Slab, now: float) -> None:
        """Compare some blocks with their checksums, and empty those that differ.  Raises: OSError.

        Their number follows from the time since the last ones, as if no more than a minute.
        """
        seconds = min(now - self._scrub_at, 60.0)
        count = round(slab.slot_count * seconds / SCRUB_SECONDS)
        count = max(1, min(count, slab.slot_count))  # none twice
        due = self._scrub_at + count * SCRUB_SECONDS / slab.slot_count
        self._scrub_at = max(due, now - 60.0)
        slots = np.arange(self._scrubbed, self._scrubbed + count) % slab.slot_count
        self._scrubbed = int(slots[-1] + 1) % slab.slot_count
        damaged = damaged_of(slab, slots)
        if damaged.size:
            self._forget(slab, damaged)
            self._damaged += damaged.size
            _LOG.error("object cache has damaged blocks=%d: fetched again", damaged.size)

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
