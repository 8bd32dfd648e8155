"""The bytes of the objects of one dataset: extents are fetched by GETs of exactly their ranges.

Extents that lie close together are one GET. What is advised is fetched ahead, and held until it is
gathered; never more than a bounded amount, so that a stream that goes away leaves little behind.
Every GET asks for the content that was opened: an object that is replaced fails the dataset. A
store that does not answer fails only the call.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable

from ...runtime.exceptions import log_safe_name
from ..bytes import (
    CHANGED,
    ByteArray,
    Extents,
    IsErasedFile,
    Numbers,
    ReadCounts,
    SameContent,
    Submit,
)
from ..layout import Layout
from .buckets import RETRY_SECONDS, Away, Bucket, Changed, Pin, require_own_process
from .cached_blocks import CachedBlocks
from .counts import BLOCK, ROW
from .fetcher import Fetch, fetcher
from .object_cache import BLOCK_WAIT_SECONDS, ObjectCache

_LOG = logging.getLogger("tokenfeed.server")

MERGED_GAP_BYTES = 64 << 10
"""Extents closer than this are one GET: the bytes between them take less time than another one."""
GET_BYTES_MAX = 1 << 20
"""Extents are merged up to this. More would not be faster, and the first row would wait longer."""
HELD_BYTES_MAX = 256 << 20
"""Of each dataset, fetched ahead and not gathered yet. Beyond it, nothing is fetched ahead."""
_LEFT_SECONDS = 60.0
"""What was fetched ahead and not gathered for this long makes room for others: its stream may have
ended. If it has not, it is fetched again."""
_PAUSES_SECONDS = (0.1, 0.4)
"""Between retries of a GET, beside those of obstore. Times up to 2, at random: streams which failed
together do not try again together."""
CHANGED_SECONDS = 30.0
"""Content that is gone must be gone for this long, without an answer in between: a store or a proxy
that restarts misses objects for a moment."""
UNASKED_SECONDS = 60.0
"""Behind a pause this long without a request, a second miss does not show that the object was gone
all the time."""
OPENING_SECONDS = 30.0
"""A store that is away while a dataset is opened is asked again for this long: it may restart while
a job does."""
_WAIT_SECONDS = 0.5
"""How often a thread that waits looks whether the dataset is closed."""
_LOG_SECONDS = 30.0
_ROWS_OF_BLOCKS = 64
"""Rows that a thread waits for at once, where each may wait for a block."""
_WAS_CHANGED = f"{CHANGED}; restart its server on complete files"


@dataclass(frozen=True, slots=True)
class ObjectShard:
    """An object of a dataset, as it was opened.

    path: its URL.  bucket, key: where it is.  pin: its content.
    """

    path: str
    layout: Layout
    bucket: Bucket
    key: str
    pin: Pin

    @property
    def place(self) -> str:
        """Its URL."""
        return self.path

    @property
    def size_bytes(self) -> int:
        """Of the whole object."""
        return self.pin.size_bytes

    def identity(self, fingerprint: bytes) -> str:
        """Return a text that no other content has; "" if only its size and time tell that.

        fingerprint: of its dataset. It counts where an ETag may be made of size and time, which
        is to the second, and may be the same for all files of a container image.
        """
        if not (self.pin.e_tag or self.pin.version):
            return ""
        is_unique = self.pin.has_unique_tag and self.bucket.url.can_list
        own = "" if is_unique else fingerprint.hex()
        facts = self.pin.size_bytes, self.layout.first_byte, self.content_bytes, self.pin.tag, own
        return "\0".join([self.bucket.address, self.key, *map(str, facts)])

    @property
    def content_bytes(self) -> int:
        """Of its tokens."""
        return self.layout.content_bytes

    def get(self, first_byte: int, end_byte: int, reason: str) -> Any:
        """Return bytes of it, counted from its beginning.  Raises: Changed, Denied, Away."""
        return self.bucket.get(self.key, first_byte, end_byte, self.pin, reason)[0]


_Place = tuple[int, int, int]
"""File, first byte and size of an extent."""


class ObjectBytes:
    """`Bytes` of objects."""

    first_file = 0
    joint = None
    may_change = False
    cached: CachedBlocks | None = None
    """Its blocks that are in the cache; None without one."""
    _cache: ObjectCache | None = None

    def __init__(self, name: str, shards: Sequence[ObjectShard], kind: str) -> None:
        """Take opened objects.  name: of the dataset.  kind: the scheme of their URLs."""
        self.shards = shards
        self.kind = kind
        self._name = name
        self._failed = ""
        self._first_bytes = np.array([shard.layout.first_byte for shard in shards], dtype=np.int64)
        self._lock = threading.Lock()  # guards what follows
        self._held: OrderedDict[_Place, tuple[Fetch, int, float]] = OrderedDict()
        """By extent: what has it, how many gathers want it, and since when."""
        self._held_bytes = 0
        self._gone: dict[int, tuple[float, float]] = {}
        """Since when the content of a file is gone, and when that was last seen; time.monotonic."""
        self._waits = self._advised_bytes = 0
        self._logged_at = -_LOG_SECONDS

    def add_blocks(self, fingerprint: bytes) -> CachedBlocks:
        """Return its blocks, for a cache; before it is served.  fingerprint: of the dataset."""
        self.cached = CachedBlocks(self.shards, fingerprint)
        return self.cached

    @property
    def holds_groups(self) -> bool:
        """Whether there is a cache without room for all blocks."""
        return self._cache is not None and not self._cache.fits

    def require_room(self, extents: Extents) -> None:
        """Raise InvalidRequest if the cache has not the room for the blocks of extents."""
        if self._cache is not None and self.cached is not None:
            self._cache.require_room(self.cached.blocks_in(extents))

    def hold(self, owner: object, present: Extents, following: Extents) -> None:
        """Fetch the blocks of extents ahead, and keep them while a stream is there."""
        if self._cache is not None and self.cached is not None:
            blocks = self.cached.blocks_in(present), self.cached.blocks_in(following)
            self._cache.hold(owner, self, *blocks)

    def use_cache(self, cache: ObjectCache) -> None:
        """Read rows out of a cache that knows the blocks."""
        self._cache = cache

    @property
    def cold(self) -> bool:
        """Whether rows have to be fetched, or seem to wait for the disk of the cache."""
        return self.cached is None or bool(self.cached.missing_count) or self.cached.readahead.cold

    @property
    def facts(self) -> list[Pin]:
        """What is known of each object."""
        return [shard.pin for shard in self.shards]

    @property
    def memory_bytes(self) -> int:
        """0: objects are not preloaded, since there is nothing that would hold them."""
        return 0

    @property
    def read_counts(self) -> ReadCounts:
        """What was read since the start."""
        return ReadCounts(self._waits, self._advised_bytes)

    # --- rows ---

    def gather(self, extents: Extents, target: ByteArray, patient: bool = True) -> None:
        """Write extents into memory, and zeros into the gaps between them."""
        self._require_usable()
        copied = None
        if self._cache is not None and self.cached is not None:
            self._cache.note_use()
            self.cached.row_bytes += extents.total_bytes
            copied = self.cached.copy(extents, target)
        if copied is None:
            _, gaps, gap_sizes = extents.gaps(target.size)
            for first, size in zip(gaps.tolist(), gap_sizes.tolist(), strict=True):
                target[first : first + size] = 0
        if copied is None or np.count_nonzero(copied) < copied.size:
            self._gather_missing(extents, copied, target, patient)
        if copied is not None and self._held:  # some may have been fetched ahead
            with self._lock:
                for place in self._places(extents.of(np.flatnonzero(copied))):
                    self._held_less(place)
        self.require_intact()

    def _gather_missing(
        self,
        extents: Extents,
        copied: npt.NDArray[np.bool_] | None,
        target: ByteArray,
        patient: bool,
    ) -> None:
        """Write the extents that are not copied yet into memory; None of them are.

        Raises: CorpusChanged, Unreadable.
        """
        ends = extents.ends
        missing = np.arange(ends.size) if copied is None else np.flatnonzero(~copied)
        # Of blocks that are waited for, many would take much memory.
        at_once = _ROWS_OF_BLOCKS if self._takes_blocks else max(1, missing.size)
        until = time.monotonic() + BLOCK_WAIT_SECONDS  # of all rows together
        for first in range(0, missing.size, at_once):
            part = missing[first : first + at_once]
            self._gather_part(extents.of(part), ends[part], target, patient, until)

    def _gather_part(
        self, extents: Extents, ends: Numbers, target: ByteArray, patient: bool, until: float
    ) -> None:
        places = self._places(extents)
        fetches = self._taken(places, self._blocks_of(extents), patient, until)
        try:
            everything = target.data
            first_bytes = self._first_bytes.tolist()
            for place, end, fetch in zip(places, ends.tolist(), fetches, strict=True):
                file, first, size = place
                first_byte = first_bytes[file] + first
                fetch = self._fetched(fetch, (first_byte, first_byte + size), patient)
                assert fetch.content is not None
                at = first_byte - fetch.first_byte
                everything[end - size : end] = fetch.content[at : at + size]
        finally:
            self._let_go(fetches)

    def advise(self, extents: Extents, due_seconds: float = 0.0) -> None:
        """Start to fetch what will be gathered soon, as far as there is room to hold it."""
        self._require_usable()
        if self.cached is not None and self.cached.missing_count < self.cached.block_count:
            is_cached = self.cached.are_cached(extents)
            self.cached.readahead.advise(extents.of(np.flatnonzero(is_cached)))
            extents = extents.of(np.flatnonzero(~is_cached))
        if self._cache is not None and self._takes_blocks:
            sizes = extents.sizes.tolist()
            apart = self._cache.wanted_rows(self, self._blocks_of(extents), sizes)
            extents = extents.of(np.flatnonzero(apart))
        with self._lock:
            self._advised_bytes += extents.total_bytes
        self._fetch_ahead(self._places(extents), due_seconds)

    def read_ahead(self, extents: Extents) -> None:
        """Start to fetch what will be read soon."""
        self._require_usable()
        self._fetch_ahead(self._places(extents), 0.0, BLOCK)

    def seem_resident(self, extents: Extents) -> bool:
        """Return False: bytes of an object store count as not in memory."""
        return False

    def ready_count(self, extents: Extents) -> int:
        """Return how many extents have been fetched, from the first one on."""
        self._require_usable()
        is_cached = None if self.cached is None else self.cached.are_cached(extents).tolist()
        blocks = self._blocks_of(extents)
        with self._lock:
            for count, place in enumerate(self._places(extents)):
                if is_cached is not None and is_cached[count]:
                    continue
                if not self._is_here(place, blocks[count]):
                    return count
        return extents.file.size

    def observe(self, waits: int) -> None:
        """Record how often a gather had to wait."""
        with self._lock:
            self._waits += waits

    # --- content that is read once ---

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of an object.  Raises: InvalidCorpus."""
        ends = time.monotonic() + OPENING_SECONDS
        try:
            while True:
                try:
                    return self.read_served(shard, first_byte, size_bytes)
                except Unreadable as error:
                    if not isinstance(error.__cause__, Away) or time.monotonic() > ends:
                        raise
                time.sleep(random.uniform(1, 2))
        except (CorpusChanged, Unreadable) as error:
            if isinstance(error, CorpusChanged) or isinstance(error.__cause__, Changed):
                problem = "changed while it was being opened; start again when it is complete"
                raise InvalidCorpus(self.shards[shard].path, problem) from error
            why = getattr(error.__cause__, "strerror", None) or error.problem
            raise InvalidCorpus(self.shards[shard].path, f"cannot be read: {why}") from error

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of an object.  Raises: CorpusChanged, Unreadable."""
        self._require_usable()
        place = shard, first_byte, size_bytes
        first = self.shards[shard].layout.first_byte + first_byte
        with self._lock:
            is_held = place in self._held
        if is_held:  # fetched ahead
            (fetch,) = self._taken([place], [-1], patient=True)
            try:
                found = self._fetched(fetch, (first, first + size_bytes), patient=True)
            finally:
                self._let_go([fetch])
        else:
            found = self.block_fetch(shard, first_byte, first_byte + size_bytes)
            found.run()
            found = self._fetched(found, (first, first + size_bytes), patient=True)
        assert found.content is not None
        at = first - found.first_byte
        return bytes(found.content[at : at + size_bytes])

    def bring_in(self) -> Iterator[int]:
        """Preload nothing."""
        return iter(())

    # --- changes ---

    @property
    def failed(self) -> bool:
        """Whether the dataset has failed: it delivers nothing more."""
        return bool(self._failed)

    def require_intact(self) -> None:
        """Raise CorpusChanged if the dataset has failed."""
        if self._failed:
            raise CorpusChanged("dataset", f"{self._name!r} {self._failed}")

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        """Fail the dataset for good.  reason: for the log.  client_message: for clients."""
        if not self._failed:
            _LOG.error("dataset failed dataset=%s reason=%s", self._name, reason)
        self._failed = client_message or _WAS_CHANGED

    def allow_replacement(self, is_erased_file: IsErasedFile) -> None:
        """Do nothing: an object that is replaced is another one."""

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Do nothing: every GET finds out whether its object has changed."""

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Return whether nothing has failed: what was read is what was opened."""
        return not (self._failed or stopped())

    def close(self) -> None:
        """Deliver nothing more. A gather in progress fails with CorpusChanged."""
        self._failed = _WAS_CHANGED
        with self._lock:
            for place in list(self._held):
                self._drop(place)

    # --- fetches ---

    def block_fetch(self, file: int, first_byte: int, end_byte: int) -> Fetch:
        """Return what fetches a block, counted from the first token of a file."""
        first = int(self._first_bytes[file])
        fetch = Fetch(file, first + first_byte, first + end_byte, self._getter(BLOCK))
        fetch.users = 1
        return fetch

    def _places(self, extents: Extents) -> list[_Place]:
        numbers = extents.file.tolist(), extents.first_byte.tolist(), extents.sizes.tolist()
        return list(zip(*numbers, strict=True))

    def _require_usable(self) -> None:
        """Raise CorpusChanged if the dataset has failed; InvalidCorpus in a fork, before a lock
        that a thread of the parent may hold.
        """
        require_own_process(self.shards[0].path)
        self.require_intact()

    def _getter(self, reason: str) -> Callable[[int, int, int], Any]:
        """Return what does a GET of a file, and fails the dataset if its content is gone for good.

        reason: of counts.py.
        """

        def get(file: int, first_byte: int, end_byte: int) -> Any:
            shard, began = self.shards[file], time.monotonic()
            try:
                found = shard.get(first_byte, end_byte, reason)
            except Changed as error:
                now = time.monotonic()
                with self._lock:
                    since, last = self._gone.get(file, (now, now))
                    if began - last >= UNASKED_SECONDS:
                        since = now
                    self._gone[file] = since, now
                if began - since >= CHANGED_SECONDS:
                    self.mark_failed(f"{log_safe_name(shard.path)}: {error.strerror}")
                raise
            if file in self._gone:
                with self._lock:
                    self._gone.pop(file, None)
            return found

        return get

    def _fetch_ahead(self, places: list[_Place], due_seconds: float, reason: str = ROW) -> None:
        with self._lock:
            self._make_room()
            places = places if self._held_bytes < HELD_BYTES_MAX else []
            missing = [place for place in dict.fromkeys(places) if not self._held_more(place)]
            made = self._merged(missing, reason)
            for fetch, within in made:
                self._hold(fetch, within)
        if made:
            fetcher().submit([fetch for fetch, _ in made], due_seconds, threading.get_ident())

    @property
    def _takes_blocks(self) -> bool:
        return self._cache is not None and self._cache.takes_blocks

    def _blocks_of(self, extents: Extents) -> list[int]:
        """Return the number of the block of each extent; -1 if it is in several, or in none."""
        if self.cached is None or not self._takes_blocks:
            return [-1] * extents.file.size
        return self.cached.blocks_of(extents).tolist()  # type: ignore[no-any-return]

    def _taken(
        self, places: Sequence[_Place], blocks: Sequence[int], patient: bool, until: float = 0.0
    ) -> list[Fetch]:
        """Return what fetches each extent, of what is held, of blocks that are on their way, or
        made now; each is in use once more, until it is let go.

        blocks: as of `_blocks_of`.  until: how long to wait until a block can be asked for.
        Raises: Unreadable if it is not patient, and one is not here.
        """
        with self._lock:
            if not patient and not all(map(self._is_here, places, blocks)):
                problem = f"{self._name!r} has rows that are not here yet; retry"
                raise Unreadable("dataset", problem)
            held = [self._taken_from_held(place) for place in places]
        # Not with the lock: it may wait until the block can be asked for.
        found = [
            self._in_block(place, block, until if patient else None)
            if fetch is None and block >= 0
            else fetch
            for place, block, fetch in zip(places, blocks, held, strict=True)
        ]
        missing = [place for place, fetch in zip(places, found, strict=True) if fetch is None]
        made = self._merged(list(dict.fromkeys(missing)), ROW)
        of_place = {place: fetch for fetch, within in made for place in within}
        taken = [fetch or of_place[place] for place, fetch in zip(places, found, strict=True)]
        late = [fetch for fetch in dict.fromkeys(taken) if not fetch.is_done]
        with self._lock:
            for before, fetch in zip(held, taken, strict=True):
                fetch.users += before is None
            self._waits += bool(late)
        if made:
            fetcher().submit([fetch for fetch, _ in made], 0.0, threading.get_ident())
        if late:
            fetcher().hurry(late)
        return taken

    def _in_block(self, place: _Place, block: int, until: float | None) -> Fetch | None:
        """Return what has an extent of a block, or will have; None if it is to be fetched by
        itself.
        """
        assert self._cache is not None
        assert self.cached is not None
        file, first, size = place
        if fetch := self._cache.fetch_of(self, block, size, until):
            return fetch
        if self.cached.slots[block] < 0:
            return None
        content = np.empty(size, dtype=np.uint8)
        copied = self.cached.copy(Extents(np.array([file]), np.array([first]), size), content)
        if copied is None or not copied.all():
            return None
        first_byte = int(self._first_bytes[file]) + first
        return Fetch.of_content(file, first_byte, content.data)

    def _let_go(self, fetches: Sequence[Fetch]) -> None:
        with self._lock:
            for fetch in fetches:
                fetch.users -= 1

    def _fetched(self, fetch: Fetch, needed: tuple[int, int], patient: bool) -> Fetch:
        """Return a fetch that has its content, after retries; another one then.

        needed: the range of bytes of its file that is asked for again.
        Raises: CorpusChanged, Unreadable.
        """
        began = time.monotonic()
        while not fetch.wait(_WAIT_SECONDS):
            self.require_intact()
        for pause_seconds in _PAUSES_SECONDS if patient else ():
            if fetch.error is None:
                break
            self._log_failure(fetch)
            if time.monotonic() - began > RETRY_SECONDS:
                break
            time.sleep(pause_seconds * random.uniform(1, 2))
            self.require_intact()
            fetch = Fetch(fetch.file, *needed, self._getter(ROW))
            fetch.users = 1
            fetch.run()
        if fetch.error is None:
            return fetch
        if not isinstance(fetch.error, OSError):
            raise fetch.error
        self.require_intact()
        self._log_failure(fetch)
        problem = "has an object that cannot be read at the moment"
        cure = "retry on this or another server; the log of this server says why"
        raise Unreadable("dataset", f"{self._name!r} {problem}; {cure}") from fetch.error

    def _log_failure(self, fetch: Fetch) -> None:
        if time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            _LOG.warning(
                "read failed, retrying dataset=%s file=%s reason=%s",
                self._name,
                log_safe_name(self.shards[fetch.file].path),
                getattr(fetch.error, "strerror", None) or fetch.error,
            )

    def _merged(self, places: Sequence[_Place], reason: str) -> list[tuple[Fetch, list[_Place]]]:
        """Return the GETs of extents, in the order of the first extent of each, and which extents
        each one has.
        """
        firsts = self._first_bytes
        # What lies between rows comes with their blocks, if these are fetched.
        gap_bytes = 0 if reason == ROW and self._takes_blocks else MERGED_GAP_BYTES
        get = self._getter(reason)
        made: list[tuple[int, Fetch, list[_Place]]] = []
        for place, number in sorted(zip(places, range(len(places)), strict=True)):
            file, first = place[0], int(firsts[place[0]]) + place[1]
            end = first + place[2]
            if made:
                earliest, last, within = made[-1]
                is_near = last.file == file and first <= last.end_byte + gap_bytes
                if is_near and max(end, last.end_byte) - last.first_byte <= GET_BYTES_MAX:
                    last.end_byte = max(end, last.end_byte)
                    within.append(place)
                    made[-1] = min(earliest, number), last, within
                    continue
            made.append((number, Fetch(file, first, end, get), [place]))
        made.sort(key=lambda one: one[0])
        return [(fetch, within) for _, fetch, within in made]

    # All below: with the lock.

    def _hold(self, fetch: Fetch, places: Sequence[_Place]) -> None:
        """Hold what is being fetched ahead, for one gather of each extent."""
        now = time.monotonic()
        for place in places:
            self._held[place] = fetch, 1, now
        fetch.users += len(places)
        fetch.places += len(places)
        self._held_bytes += fetch.size_bytes

    def _is_here(self, place: _Place, block: int) -> bool:
        """Return whether an extent that is not cached has been fetched, or its block."""
        held = self._held.get(place)
        fetch = held[0] if held else None
        if fetch is None and block >= 0 and self._cache is not None:
            fetch = self._cache.fetch_of(self, block, place[2], None)
        return fetch is not None and fetch.content is not None

    def _taken_from_held(self, place: _Place) -> Fetch | None:
        """Return what fetches an extent, in use once more, if it is held; then for one gather
        less.
        """
        held = self._held.get(place)
        fetch = None if held is None or held[0].error is not None else held[0]
        if fetch is not None:
            fetch.users += 1
        self._held_less(place)
        return fetch

    def _held_more(self, place: _Place) -> bool:
        """Hold an extent for one gather more; return whether it is held."""
        held = self._held.get(place)
        if held is None:
            return False
        fetch, users, _ = held
        if fetch.error is not None:
            self._drop(place)
            return False
        fetch.users += 1
        self._held[place] = fetch, users + 1, time.monotonic()
        self._held.move_to_end(place)  # they are in the order of their times
        return True

    def _held_less(self, place: _Place) -> None:
        """Hold an extent for one gather less."""
        if (held := self._held.get(place)) is None:
            return
        fetch, users, since = held
        if users == 1:
            self._drop(place)
        else:
            fetch.users -= 1
            self._held[place] = fetch, users - 1, since

    def _drop(self, place: _Place) -> None:
        """Let go of an extent."""
        fetch, users, _ = self._held.pop(place)
        fetch.users -= users
        fetch.places -= 1
        if not fetch.places:
            self._held_bytes -= fetch.size_bytes

    def _make_room(self) -> None:
        """Let go of what seems to be left behind, if there is no room."""
        while self._held and self._held_bytes >= HELD_BYTES_MAX:
            place, (_, _, since) = next(iter(self._held.items()))
            if time.monotonic() - since < _LEFT_SECONDS:
                return
            self._drop(place)
