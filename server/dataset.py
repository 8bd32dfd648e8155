"""A named dataset, opened, checked and fingerprinted: what the service serves from.

Reads the files once at start, around the gather and in several threads: all of them up to 1 GiB,
above that blocks spread over the whole. The same pass looks for tokens that cannot be right.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed import identity
from tokenfeed.errors import BadCorpus, CorpusChanged, Unreadable
from tokenfeed.spans import Spans

from .digest import Digest
from .formats import Asked, Stored
from .loss_masks import require_listed
from .manifest import MadeSplit
from .narrowing import Look
from .shards import Source
from .storage.choice import Storing, open_store
from .storage.store import PIECE_BYTES, Later, Piece, StoredShard, TokenStore, at_once
from .turns import Turns

Tokens = npt.NDArray[np.integer]

_LOG = logging.getLogger("tokenfeed.server")
_READERS = 16
_BLOCKS_AT_ONCE = 256
_THREADED_BYTES_MIN = 1 << 16
"""Of smaller blocks, threads would mostly wait for each other: 4,096 of 4 KiB took 1.0 s of a hot
file in 16 threads and 0.4 in one. 2 cores, 2026-11."""
_PROGRESS_SECONDS = 5.0

# Of uint32 tokens read as uint16, every second one is the high half: 0 up to 65,535, 1 up to
# 131,071, and so on; the others, the low halves, are nearly all greater than that.
_HIGH_HALF_MAX = 3
_LOW_HALVES_MIN = 64
"""With less evidence than that there is no suspicion: a sparse corpus may look like anything."""
_ODD_LARGE_SHARE_MAX = 0.01


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents in all files of which that is known, and how many files these are."""

    count: int
    file_count: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is served under one name.

    fingerprint: 32 bytes.  full_digest: of all of it, which may become known later.  why_store: why
    it has that kind of store.
    """

    name: str
    store: TokenStore
    fingerprint: bytes
    full_digest: Digest
    why_store: str = "unknown"
    turns: Turns = field(default_factory=Turns)

    @property
    def digest(self) -> bytes:
        """32 bytes; b"" as long as it is not known."""
        return self.full_digest.known

    @property
    def documents(self) -> Documents | None:
        """What is known of its documents; None if that is nothing."""
        known = [shard.layout.documents for shard in self.store.shards]
        counts = [documents.count for documents in known if documents is not None]
        return Documents(sum(counts), len(counts)) if counts else None

    def look(self) -> None:
        """Look at what has become of its files, of all of them."""
        for shard in range(len(self.store.shards)):
            self.look_at(shard)

    def look_at(
        self,
        shard: int,
        later: Later = at_once,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Look at what has become of one of its files.

        later: calls what it is given, which reads the files anew until stopped() is true.
        """
        self.store.look_at(shard, partial(self._same_content, stopped), later)

    def _same_content(self, stopped: Callable[[], bool]) -> bool | None:
        """Say whether what the fingerprint is of is still the same, as far as that can be told;
        None if it cannot be read now.
        """
        content = _Content(self.store, self.store.read_served)
        blocks = []
        try:
            for block in content.hashed(identity.content_blocks(content.size_bytes)):
                if stopped():
                    return True  # nobody will ask again
                blocks.append(block)
        except CorpusChanged:
            return False
        except Unreadable:
            return None
        return _fingerprint(self.store, blocks) == self.fingerprint

    def close(self) -> None:
        """Give its files back."""
        self.store.close()


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """What to look for in the tokens.

    vocab_size: ids at or above it are an error; None where it is not known.  all_tokens: look at
    every one, also where the fingerprint is of a sample.  serves: whether any will be served.
    """

    vocab_size: int | None = None
    all_tokens: bool = False
    serves: bool = True


def open_dataset(
    source: Source, asked: Asked, checks: TokenChecks, storing: Storing | None = None
) -> Dataset:
    """Open a dataset's files, check them and take their fingerprint.

    Tokens that are narrowed before they are served are all looked at, unless vocab_size is known.
    Raises: BadCorpus, naming the file, what is wrong with it, and what to do.
    """
    if source.made is not None:
        require_listed(source.made)
    store, why_store = open_store(source.name, source.paths, asked, storing or Storing())
    try:
        return dataset_of(store, checks, source.made, why_store)
    except BaseException:
        store.close()
        raise


def dataset_of(
    store: TokenStore, checks: TokenChecks, made: MadeSplit | None = None, why_store: str = ""
) -> Dataset:
    """Check what a store holds, and take its fingerprint; as `open_dataset`, for any store.

    made: what its manifest says.  why_store: why it is that kind of store.
    """
    content = _Content(store, store.read)
    whole = content.size_bytes <= identity.COMPLETE_BYTES_MAX
    first_pass = _first_pass(store, checks.vocab_size)
    _require_no_halves(store, first_pass)
    token_max = max(block.token_max for block in first_pass)
    if checks.vocab_size is not None:
        token_max = checks.vocab_size - 1
    narrowed = checks.serves and store.narrowing.looks and checks.vocab_size is None
    if (checks.all_tokens or narrowed) and not whole:
        every = identity.content_blocks(content.size_bytes, complete=True)
        found = content.scan(every, checks.vocab_size)
        for block in _with_progress(found, content.size_bytes):
            token_max = max(token_max, block.token_max)
    store.narrow(token_max)
    fingerprint = _fingerprint(store, first_pass)
    if made is not None and made.fingerprint != fingerprint:
        problem = "has other shards than its manifest says: one was written to, or replaced"
        raise BadCorpus(os.path.dirname(store.shards[0].path), problem)
    if whole:
        digest = _digest(store, (block.sha256 for block in first_pass))
    elif made is not None:
        digest = made.digest
    else:
        digest = store.kept_digest()
    return Dataset(store.name, store, fingerprint, Digest(digest), why_store)


def full_digest(store: TokenStore) -> bytes:
    """Read all of a store and return its digest, 32 bytes; says in the log how far it is.  Raises:
    BadCorpus.
    """
    content = _Content(store, store.read)
    blocks = content.hashed(identity.content_blocks(content.size_bytes, complete=True))
    return _digest(store, (block.sha256 for block in _with_progress(blocks, content.size_bytes)))


class InOrder:
    """The digest of tokens that are read in order, as a warm-up does.

    facts: what was known of the files before the first was read.  seconds: spent on it.
    """

    def __init__(self, store: TokenStore) -> None:
        """Begin before the first token."""
        self.facts = store.facts
        self.seconds = 0.0
        self._store = store
        self._hashes: list[bytes] = []
        self._block = hashlib.sha256()
        self._left_bytes = identity.BLOCK_BYTES
        self._missing_bytes = int(store.shape.token_counts.sum()) * store.stored.itemsize

    @property
    def is_complete(self) -> bool:
        """Whether all tokens were added."""
        return not self._missing_bytes

    def add(self, piece: Piece) -> None:
        """Add what comes next."""
        began = time.monotonic()
        content = piece.content
        self._missing_bytes -= len(content or b"")
        while content:
            part = content[: self._left_bytes]
            self._block.update(part)
            self._left_bytes -= len(part)
            content = content[len(part) :]
            if not self._left_bytes:
                self._end_block()
        self.seconds += time.monotonic() - began

    def digest(self) -> bytes:
        """Return the digest of all, 32 bytes."""
        assert self.is_complete
        if self._left_bytes < identity.BLOCK_BYTES:
            self._end_block()
        return _digest(self._store, self._hashes)

    def _end_block(self) -> None:
        self._hashes.append(self._block.digest())
        self._block, self._left_bytes = hashlib.sha256(), identity.BLOCK_BYTES


def read_in_turn(store: TokenStore, stopped: Callable[[], bool]) -> InOrder:
    """Return what was read of what is served, by this thread alone, a MiB after another: all of it,
    or less once stopped() is true.  Raises: CorpusChanged, Unreadable.
    """
    began = time.monotonic()
    reading = InOrder(store)
    for index, count in enumerate(store.shape.token_counts.tolist()):
        size_bytes = count * store.stored.itemsize
        for first in range(0, size_bytes, PIECE_BYTES):
            if stopped():
                return reading
            content = store.read_served(index, first, min(PIECE_BYTES, size_bytes - first))
            reading.add(Piece(0, memoryview(content)))
    reading.seconds = time.monotonic() - began
    return reading


@dataclass(frozen=True, slots=True)
class _Block:
    """What one block of the content was found to hold.

    token_max: greatest token, -1 where nobody had to look.  halves: by file, of those whose tokens
    were taken for uint16 because nothing says otherwise.
    """

    size_bytes: int
    sha256: bytes
    token_max: int = -1
    halves: dict[int, _Halves] = field(default_factory=dict)


class _Halves(NamedTuple):
    """What tells uint16 tokens from the halves of uint32 ones.

    Numbers of those that are too great for the high half of a uint32 token, at odd and at even
    places of the file, and of those at odd places that are the high half of a negative one.
    """

    odd_large: int = 0
    even_large: int = 0
    negative: int = 0

    @classmethod
    def of(cls, tokens: Tokens, first_token: int) -> _Halves:
        evens, odds = tokens[first_token % 2 :: 2], tokens[1 - first_token % 2 :: 2]
        even_large, odd_large = (
            int(np.count_nonzero(some > _HIGH_HALF_MAX)) for some in (evens, odds)
        )
        negative = int(np.count_nonzero(odds == 0xFFFF)) if odd_large else 0
        return cls(odd_large - negative, even_large, negative)

    def and_those(self, other: _Halves) -> _Halves:
        return _Halves(*map(int.__add__, self, other))

    @property
    def look_alike(self) -> bool:
        enough = self.even_large >= _LOW_HALVES_MIN
        return enough and self.odd_large <= self.even_large * _ODD_LARGE_SHARE_MAX


class _Content:
    """The files' tokens laid end to end, as the fingerprint sees them."""

    def __init__(self, store: TokenStore, read: Callable[[int, int, int], bytes]) -> None:
        self._store = store
        self._read = read
        ends = np.cumsum(store.shape.token_counts * store.stored.itemsize).tolist()
        self._firsts, self._ends = [0, *ends[:-1]], ends
        self.size_bytes: int = ends[-1]

    def scan(self, blocks: Iterator[tuple[int, int]], vocab_size: int | None) -> Iterator[_Block]:
        """Read blocks, each (first_byte, end_byte), and look at their tokens.

        Yields: what was found, in the order of the blocks.  Raises: BadCorpus.
        """
        return self._each(blocks, partial(self._scan_block, vocab_size))

    def hashed(self, blocks: Iterator[tuple[int, int]]) -> Iterator[_Block]:
        """Read blocks, whatever tokens are in them.  Raises: BadCorpus if that cannot be done."""
        return self._each(blocks, self.hash_block)

    def _each(
        self,
        blocks: Iterator[tuple[int, int]],
        scan_block: Callable[[tuple[int, int]], _Block],
    ) -> Iterator[_Block]:
        """Read blocks in several threads, or ahead if they are small."""
        with ThreadPoolExecutor(_READERS, "tokenfeed-scan") as readers:
            while some := list(itertools.islice(blocks, _BLOCKS_AT_ONCE)):
                if some[0][1] - some[0][0] < _THREADED_BYTES_MIN:
                    self._read_ahead(some)
                    yield from map(scan_block, some)
                else:
                    yield from readers.map(scan_block, some)

    def _read_ahead(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Have small blocks be read from now on, all of them at once."""
        pieces = [piece for block in blocks for piece in self._pieces(*block)]
        shard, first_byte, end_byte = np.array(pieces, dtype=np.int64).T
        token_bytes = self._store.stored.itemsize
        first = first_byte // token_bytes
        count = -(-end_byte // token_bytes) - first
        row_tokens = int(count.max())
        rows = np.arange(shard.size + 1)
        self._store.read_ahead(
            Spans(row_tokens, rows, np.zeros_like(shard), shard.copy(), first, count)
        )

    def hash_block(self, block: tuple[int, int]) -> _Block:
        """Read one block, whatever tokens are in it.  Raises: BadCorpus."""
        digest = hashlib.sha256()
        for index, first, end in self._pieces(*block):
            digest.update(self._read(index, first, end - first))
        return _Block(block[1] - block[0], digest.digest())

    def _scan_block(self, vocab_size: int | None, block: tuple[int, int]) -> _Block:
        digest = hashlib.sha256()
        token_max = -1
        halves: dict[int, _Halves] = {}
        stored = self._store.stored
        for index, first, end in self._pieces(*block):
            shard = self._store.shards[index]
            content = self._read(index, first, end - first)
            digest.update(content)
            tokens, first_token = _whole_tokens(content, first, stored)
            look = self._store.narrowing.look(tokens, vocab_size)
            if look.wrong_place is not None:
                raise _no_token(shard, tokens, first_token, look, vocab_size)
            token_max = max(token_max, look.greatest)
            if shard.layout.dtype_assumed and stored.itemsize == 2:
                halves[index] = _Halves.of(tokens, first_token)
        return _Block(block[1] - block[0], digest.digest(), token_max, halves)

    def _pieces(self, first_byte: int, end_byte: int) -> Iterator[tuple[int, int, int]]:
        """Cut a block at the borders of the files: each piece's file, first byte and end byte
        within that file's tokens.
        """
        index = bisect.bisect_right(self._ends, first_byte)
        while first_byte < end_byte:
            file_first, file_end = self._firsts[index], min(self._ends[index], end_byte)
            yield index, first_byte - file_first, file_end - file_first
            first_byte = file_end
            index += 1


def _whole_tokens(content: bytes, first_byte: int, dtype: Stored) -> tuple[Tokens, int]:
    """Return the tokens that lie wholly in a piece of a file, and the place of the first of them in
    the file.
    """
    skipped = -first_byte % dtype.itemsize
    count = max(0, len(content) - skipped) // dtype.itemsize
    tokens = np.frombuffer(content, dtype=dtype, count=count, offset=skipped if count else 0)
    return tokens, (first_byte + skipped) // dtype.itemsize


def _no_token(
    shard: StoredShard, tokens: Tokens, first_token: int, look: Look, vocab_size: int | None
) -> BadCorpus:
    assert look.wrong_place is not None
    place, value = first_token + look.wrong_place, int(tokens[look.wrong_place])
    if value < 0:
        limit = "negative: a label that is masked, or another --dtype?"
    elif vocab_size is None:
        limit = "above what uint32 holds"
    else:
        limit = f"not below --vocab-size {vocab_size}"
    return BadCorpus(shard.path, f"token {place} is {value}, {limit}")


def _require_no_halves(store: TokenStore, blocks: Iterable[_Block]) -> None:
    """Raise BadCorpus if tokens that were taken for uint16 look like the halves of wider ones."""
    found: dict[int, _Halves] = {}
    for block in blocks:
        for index, halves in block.halves.items():
            found[index] = found.get(index, _Halves()).and_those(halves)
    for index, halves in sorted(found.items()):
        if halves.look_alike:
            shard = store.shards[index]
            dtype = "int32" if halves.negative else "uint32"
            dtype = "int64" if _has_empty_quarters(store, index) else dtype
            raise BadCorpus(
                shard.path,
                f"every second token is at most {_HIGH_HALF_MAX}: this looks like {dtype}. "
                f"Pass --dtype {dtype}, or --dtype uint16 if it really is uint16",
            )


def _has_empty_quarters(store: TokenStore, index: int) -> bool:
    """Say whether the halves of wider tokens are themselves halves of those of 8 bytes."""
    layout = store.shards[index].layout
    content = store.read(index, 0, min(1 << 16, layout.content_bytes // 8 * 8))
    return int(np.frombuffer(content, layout.dtype)[2::4].max(initial=0)) == 0


def _first_pass(store: TokenStore, vocab_size: int | None) -> list[_Block]:
    """Read what the fingerprint is of.  Raises: BadCorpus."""
    content = _Content(store, store.read)
    return list(content.scan(identity.content_blocks(content.size_bytes), vocab_size))


def _fingerprint(store: TokenStore, blocks: Iterable[_Block]) -> bytes:
    hashes = (block.sha256 for block in blocks)
    return identity.fingerprint(store.stored.name, store.shape.token_counts.tolist(), hashes)


def _digest(store: TokenStore, hashes: Iterable[bytes]) -> bytes:
    return identity.digest(store.stored.name, store.shape.token_counts.tolist(), hashes)


def _with_progress(blocks: Iterable[_Block], total_bytes: int) -> Iterator[_Block]:
    """Yield blocks, and say in the log how far they have come."""
    done_bytes = 0
    said = time.monotonic()
    for block in blocks:
        yield block
        done_bytes += block.size_bytes
        if time.monotonic() - said >= _PROGRESS_SECONDS:
            said = time.monotonic()
            _LOG.info("reading all tokens done=%.1f%%", 100 * done_bytes / total_bytes)
