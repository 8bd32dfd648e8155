"""The concatenated tokens of a dataset's files: read for its fingerprint, digest and checks."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tokenfeed.errors import InvalidCorpus, Option
from tokenfeed.stream import identity

from ..runtime.threads.parallel import map_in_threads
from ..storage.bytes import Extents, StoredShard
from ..storage.formats import Layout, Stored
from ..storage.halves import Halves, StoredTokens, rule_out_halves
from ..storage.narrowing import TokenScan
from ..storage.option_names import DTYPE, VOCAB_SIZE
from ..storage.store import TokenStore

_LOG = logging.getLogger("tokenfeed.server")
_PROGRESS_SECONDS = 5.0

_READERS = 16
_BLOCKS_AT_ONCE = 256
_THREADED_BYTES_MIN = 1 << 16
"""Smaller blocks are read in one thread: with 16, 4,096 blocks of 4 KiB of a cached file took 1.0 s
instead of 0.4, because the threads mostly wait for each other. 2 cores, 2026-11."""


@dataclass(frozen=True, slots=True)
class Block:
    """The hash and the scan of one block of the content.

    token_max: greatest token; -1 if none was scanned.  halves: by file, for files whose tokens are
    assumed to be uint16.
    """

    size_bytes: int
    sha256: bytes
    token_max: int = -1
    halves: dict[int, Halves] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan of a dataset's content has found.

    fingerprint: 32 bytes.  digest: of all content, 32 bytes; b"" if not all of it was read.
    token_max: greatest token; -1 if unknown and not needed.
    """

    fingerprint: bytes
    digest: bytes
    token_max: int


class Content:
    """The concatenated tokens of all files, as the fingerprint covers them."""

    def __init__(
        self,
        store: TokenStore,
        read: Callable[[int, int, int], bytes],
        stopped: Callable[[], bool] = lambda: False,
        above_limit: str = f"not below {VOCAB_SIZE} {{}}",
        *,
        readers: int = _READERS,
    ) -> None:
        """Read nothing yet.

        read: `read` or `read_served` of the store.  stopped: whether to stop reading, which raises
        InvalidCorpus.  above_limit: how to call a token that is at or above the limit of `scan`.
        readers: threads that read; 1 is the caller's.
        """
        self._store = store
        self._read = read
        self._stopped = stopped
        self._above_limit = above_limit
        self._readers = readers
        ends = np.cumsum(store.shape.token_counts * store.stored.itemsize).tolist()
        self._firsts, self._ends = [0, *ends[:-1]], ends
        self.size_bytes: int = ends[-1]
        # By file, until halves are ruled out: a third of the time of a scan. Several threads change
        # them without a lock: at worst, it takes a block more.
        self._odd_large: dict[int, int] = {}
        self._no_halves: set[int] = set()

    def scan(self, vocab_size: int | None, *, complete: bool = False) -> Iterator[Block]:
        """Read the blocks that the fingerprint covers, or all blocks, and scan their tokens.

        Yields: the blocks in order.  Raises: InvalidCorpus.
        """
        return self._each(partial(self._scan_block, vocab_size), complete=complete)

    def hashed(self, *, complete: bool = False) -> Iterator[Block]:
        """Like `scan`, without a scan of tokens.  Raises: InvalidCorpus if they cannot be read."""
        return self._each(self._hash_block, complete=complete)

    def _each(
        self, scan_block: Callable[[tuple[int, int]], Block], *, complete: bool
    ) -> Iterator[Block]:
        """Read blocks in several threads, or small blocks in one thread with read-ahead."""
        blocks = identity.content_blocks(self.size_bytes, complete=complete)
        scan_block = partial(self._unless_stopped, scan_block)
        while group := list(itertools.islice(blocks, _BLOCKS_AT_ONCE)):
            is_small = group[0][1] - group[0][0] < _THREADED_BYTES_MIN
            if is_small:
                self._read_ahead(group)
            if is_small or self._readers == 1:
                yield from map(scan_block, group)
            else:
                yield from map_in_threads(scan_block, group, self._readers, "tokenfeed-scan")

    def _read_ahead(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Start to read small blocks ahead, all of them at once."""
        pieces = [piece for block in blocks for piece in self._pieces(*block)]
        shard, first_byte, end_byte = np.array(pieces, dtype=np.int64).T
        file = self._store.files.first_file + shard
        self._store.files.read_ahead(Extents(file, first_byte, end_byte - first_byte))

    def _unless_stopped(
        self, scan_block: Callable[[tuple[int, int]], Block], block: tuple[int, int]
    ) -> Block:
        if self._stopped():
            raise InvalidCorpus(self._store.shards[0].path, "was closed while it was being opened")
        return scan_block(block)

    def _hash_block(self, block: tuple[int, int]) -> Block:
        digest = hashlib.sha256()
        for index, first, end in self._pieces(*block):
            digest.update(self._read(index, first, end - first))
        return Block(block[1] - block[0], digest.digest())

    def _scan_block(self, vocab_size: int | None, block: tuple[int, int]) -> Block:
        digest = hashlib.sha256()
        token_max = -1
        halves: dict[int, Halves] = {}
        stored = self._store.stored
        for index, first, end in self._pieces(*block):
            shard = self._store.shards[index]
            content = self._read(index, first, end - first)
            digest.update(content)
            tokens, first_token = _whole_tokens(content, first, stored)
            found = self._store.narrowing.scan(tokens, vocab_size)
            if found.wrong_place is not None:
                limit = "" if vocab_size is None else self._above_limit.format(vocab_size)
                option = VOCAB_SIZE.to(vocab_size)
                raise _invalid_token(shard, tokens, first_token, found, limit, option)
            token_max = max(token_max, found.greatest)
            if shard.layout.dtype_assumed and stored.itemsize == 2 and index not in self._no_halves:
                halves[index] = Halves.of(tokens, first_token)
                odd_large = self._odd_large.get(index, 0) + halves[index].odd_large
                self._odd_large[index] = odd_large
                if rule_out_halves(odd_large, shard.layout.token_count):
                    self._no_halves.add(index)
        return Block(block[1] - block[0], digest.digest(), token_max, halves)

    def _pieces(self, first_byte: int, end_byte: int) -> Iterator[tuple[int, int, int]]:
        """Split a block at the borders of files: yield each piece's file, first byte and end byte
        within that file's tokens.
        """
        index = bisect.bisect_right(self._ends, first_byte)
        while first_byte < end_byte:
            file_first, file_end = self._firsts[index], min(self._ends[index], end_byte)
            yield index, first_byte - file_first, file_end - file_first
            first_byte = file_end
            index += 1


def _whole_tokens(content: bytes, first_byte: int, dtype: Stored) -> tuple[StoredTokens, int]:
    """Return the tokens that are completely within a piece of a file, and the index of the first of
    them in the file.
    """
    skipped = -first_byte % dtype.itemsize
    count = max(0, len(content) - skipped) // dtype.itemsize
    tokens = np.frombuffer(content, dtype=dtype, count=count, offset=skipped if count else 0)
    return tokens, (first_byte + skipped) // dtype.itemsize


def _invalid_token(
    shard: StoredShard,
    tokens: StoredTokens,
    first_token: int,
    found: TokenScan,
    limit: str,
    option: Option,
) -> InvalidCorpus:
    assert found.wrong_place is not None
    index, value = first_token + found.wrong_place, int(tokens[found.wrong_place])
    if value < 0:
        limit = f"negative: is it a masked label, or is {DTYPE} wrong?"
    elif not limit:
        limit = "above the maximum of uint32"
    return InvalidCorpus(shard.path, f"token {index} is {value}, {limit}", option, DTYPE)


def fingerprint_of(store: TokenStore, blocks: Iterable[Block]) -> bytes:
    """Return the fingerprint of a store, 32 bytes.  blocks: those that it covers, in order."""
    hashes = (block.sha256 for block in blocks)
    shape = store.shape
    return identity.fingerprint(
        store.stored.name, shape.token_counts.tolist(), hashes, shape.row_tokens
    )


def fingerprint_of_file(layout: Layout, read: Callable[[int, int], bytes]) -> bytes:
    """Return the fingerprint that a file would have as a dataset of its own, 32 bytes.

    read: returns bytes of the file, from the first and how many, counted from its first token.
    """
    blocks = identity.content_blocks(layout.content_bytes, complete=False)
    hashes = (hashlib.sha256(read(first, end - first)).digest() for first, end in blocks)
    count, rows = layout.token_count, layout.row_tokens
    return identity.fingerprint(layout.dtype.name, [count], hashes, rows)


def digest_of(store: TokenStore, hashes: Iterable[bytes]) -> bytes:
    """Return the digest of a store, 32 bytes.  hashes: of all its blocks, in order."""
    return identity.digest(store.stored.name, store.shape.token_counts.tolist(), hashes)


def full_digest(store: TokenStore, read: Callable[[int, int, int], bytes] | None = None) -> bytes:
    """Read all of a store and return its digest, 32 bytes. Logs its progress.

    read: as for Content; None: that of the store.  Raises: InvalidCorpus.
    """
    content = Content(store, read or store.files.read)
    blocks = with_progress(content.hashed(complete=True), content.size_bytes)
    return digest_of(store, (block.sha256 for block in blocks))


def with_progress(blocks: Iterable[Block], total_bytes: int) -> Iterator[Block]:
    """Yield blocks, and log the progress."""
    done_bytes = 0
    logged_at = time.monotonic()
    for block in blocks:
        yield block
        done_bytes += block.size_bytes
        if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            _LOG.info("reading all tokens done=%.1f%%", 100 * done_bytes / total_bytes)
