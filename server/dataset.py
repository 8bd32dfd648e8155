"""A named dataset, opened, checked and fingerprinted: what the service serves from.

Reads the files once at start, around the map and in several threads: all of them up to 1 GiB, above
that blocks spread over the whole. The same pass looks for tokens that cannot be right.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenfeed import identity
from tokenfeed.errors import BadCorpus
from tokenfeed.plan import Windows

from . import kernel
from .blame import file_name
from .corpus import Corpus, at_once
from .digest import read_sidecar
from .formats import Asked, Stored
from .narrowing import NoToken
from .readahead import ReadAhead
from .shard import Shard
from .shards import Source
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


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is served under one name.

    fingerprint: 32 bytes.  digest: 32 bytes; b"" if it is not known.
    """

    name: str
    corpus: Corpus
    readahead: ReadAhead
    fingerprint: bytes
    digest: bytes
    turns: Turns = field(default_factory=Turns)

    def look(
        self,
        later: Callable[[Callable[[], None]], None] = at_once,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Look at what has become of its files.

        later: calls what it is given, which reads the files anew until stopped() is true.
        """
        self.corpus.look(partial(self._same_content, stopped), later)

    def _same_content(self, stopped: Callable[[], bool]) -> bool:
        """Say whether what the fingerprint is of is still the same, as far as that can be told."""
        content = _Content(self.corpus)
        blocks = []
        try:
            for block in content.scan(identity.content_blocks(content.size_bytes), None):
                if stopped():
                    return True  # nobody will ask again
                blocks.append(block)
        except BadCorpus as error:
            # It may not be read any more. Were it cut or written to, the next look would see it.
            _LOG.warning(
                "could not be read again dataset=%s file=%s: %s",
                self.name,
                file_name(error.subject),
                error.problem,
            )
            return True
        return _fingerprint(self.corpus, blocks) == self.fingerprint

    def close(self) -> None:
        """Unmap its files."""
        self.corpus.close()


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """What to look for in the tokens.

    vocab_size: ids at or above it are an error; None where it is not known.  all_tokens: look at
    every one, also where the fingerprint is of a sample.  serves: whether any will be served.
    """

    vocab_size: int | None = None
    all_tokens: bool = False
    serves: bool = True


def open_dataset(source: Source, asked: Asked, checks: TokenChecks) -> Dataset:
    """Map a dataset's files, check them and take their fingerprint.

    Tokens that are narrowed before they are served are all looked at, unless vocab_size is known.
    Raises: BadCorpus, naming the file, what is wrong with it, and what to do.
    """
    corpus = Corpus(source.name, source.paths, asked)
    try:
        content = _Content(corpus)
        whole = content.size_bytes <= identity.COMPLETE_BYTES_MAX
        first_pass = _first_pass(corpus, checks.vocab_size)
        if corpus.shards[0].layout.dtype_assumed and corpus.stored.itemsize == 2:
            _require_no_halves(source.paths[0], first_pass)
        token_max = max(block.token_max for block in first_pass)
        if checks.vocab_size is not None:
            token_max = checks.vocab_size - 1
        narrowed = checks.serves and corpus.narrowing.looks and checks.vocab_size is None
        if (checks.all_tokens or narrowed) and not whole:
            every = identity.content_blocks(content.size_bytes, complete=True)
            found = content.scan(every, checks.vocab_size)
            for block in _with_progress(found, content.size_bytes):
                token_max = max(token_max, block.token_max)
        corpus.narrow(token_max)
        fingerprint = _fingerprint(corpus, first_pass)
        if whole:
            digest = _digest(corpus, first_pass)
        else:
            digest = read_sidecar(corpus.shards, corpus.stored)
        return Dataset(source.name, corpus, ReadAhead(corpus), fingerprint, digest)
    except BaseException:
        corpus.close()
        raise


def full_digest(corpus: Corpus) -> bytes:
    """Read all of a corpus and return its digest, 32 bytes; says in the log how far it is.  Raises:
    BadCorpus.
    """
    content = _Content(corpus)
    blocks = content.scan(identity.content_blocks(content.size_bytes, complete=True), None)
    return _digest(corpus, _with_progress(blocks, content.size_bytes))


@dataclass(frozen=True, slots=True)
class _Block:
    """What one block of the content was found to hold.

    token_max: greatest token, -1 where none was looked for.  odd_max: greatest one at an odd place
    of its file.  even_large_count: tokens at even places that are too great for the high half of a
    uint32 token.
    """

    size_bytes: int
    sha256: bytes
    token_max: int
    odd_max: int
    even_large_count: int


class _Content:
    """The files' tokens laid end to end, as the fingerprint sees them."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        sizes = corpus.token_counts * corpus.stored.itemsize
        self._ends = np.cumsum(sizes)
        self._firsts = self._ends - sizes
        self.size_bytes = int(self._ends[-1])

    def scan(self, blocks: Iterator[tuple[int, int]], vocab_size: int | None) -> Iterator[_Block]:
        """Read blocks, each (first_byte, end_byte), in several threads, or ahead if they are small.

        Yields: what was found, in the order of the blocks.  Raises: BadCorpus.
        """

        def scan_block(block: tuple[int, int]) -> _Block:
            return self._scan_block(*block, vocab_size)

        with ThreadPoolExecutor(_READERS, "tokenfeed-scan") as readers:
            while some := list(itertools.islice(blocks, _BLOCKS_AT_ONCE)):
                if some[0][1] - some[0][0] < _THREADED_BYTES_MIN:
                    self._read_ahead(some)
                    yield from map(scan_block, some)
                else:
                    yield from readers.map(scan_block, some)

    def _read_ahead(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Have the kernel start to read blocks of a page, all of them at once, where it has to."""
        pieces = [piece[:2] for block in blocks for piece in self._pieces(*block)]
        shard, first_byte = np.array(pieces, dtype=np.int64).T
        page_tokens = kernel.PAGE_BYTES // self._corpus.stored.itemsize
        windows = Windows(shard, first_byte // self._corpus.stored.itemsize)
        ReadAhead(self._corpus).advise(windows, page_tokens * self._corpus.dtype.itemsize)

    def _scan_block(self, first_byte: int, end_byte: int, vocab_size: int | None) -> _Block:
        digest = hashlib.sha256()
        token_max = -1
        odd_max = even_large_count = 0
        stored = self._corpus.stored
        for index, first, end in self._pieces(first_byte, end_byte):
            shard = self._corpus.shards[index]
            content = shard.read(first, end - first)
            digest.update(content)
            tokens, first_token = _whole_tokens(content, first, stored)
            try:
                greatest = self._corpus.narrowing.require_tokens(tokens, vocab_size)
            except NoToken as found:
                raise _no_token(shard, first_token, found, vocab_size) from None
            token_max = max(token_max, greatest)
            if stored.itemsize == 2:
                evens, odds = tokens[first_token % 2 :: 2], tokens[1 - first_token % 2 :: 2]
                odd_max = max(odd_max, int(odds.max(initial=0)))
                even_large_count += int(np.count_nonzero(evens > _HIGH_HALF_MAX))
        size_bytes = end_byte - first_byte
        return _Block(size_bytes, digest.digest(), token_max, odd_max, even_large_count)

    def _pieces(self, first_byte: int, end_byte: int) -> Iterator[tuple[int, int, int]]:
        """Cut a block at the borders of the files: each piece's file, first byte and end byte
        within that file's tokens.
        """
        index = int(np.searchsorted(self._ends, first_byte, side="right"))
        while first_byte < end_byte:
            file_first, file_end = int(self._firsts[index]), min(int(self._ends[index]), end_byte)
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


def _no_token(shard: Shard, first_token: int, found: NoToken, vocab_size: int | None) -> BadCorpus:
    if found.value < 0:
        limit = "negative: a label that is masked, or another --dtype?"
    elif vocab_size is None:
        limit = "above what uint32 holds"
    else:
        limit = f"not below --vocab-size {vocab_size}"
    return BadCorpus(shard.path, f"token {first_token + found.place} is {found.value}, {limit}")


def _require_no_halves(path: str, blocks: Iterable[_Block]) -> None:
    """Raise BadCorpus if tokens read as uint16 look like the halves of uint32 tokens."""
    blocks = list(blocks)
    odd_max = max(block.odd_max for block in blocks)
    evidence = sum(block.even_large_count for block in blocks)
    if odd_max <= _HIGH_HALF_MAX and evidence >= _LOW_HALVES_MIN:
        raise BadCorpus(
            path,
            f"every second token is at most {odd_max}: this looks like uint32. "
            "Pass --dtype uint32, or --dtype uint16 if it really is uint16",
        )


def _first_pass(corpus: Corpus, vocab_size: int | None) -> list[_Block]:
    """Read what the fingerprint is of.  Raises: BadCorpus."""
    content = _Content(corpus)
    return list(content.scan(identity.content_blocks(content.size_bytes), vocab_size))


def _fingerprint(corpus: Corpus, blocks: Iterable[_Block]) -> bytes:
    hashes = (block.sha256 for block in blocks)
    return identity.fingerprint(corpus.stored.name, corpus.token_counts.tolist(), hashes)


def _digest(corpus: Corpus, blocks: Iterable[_Block]) -> bytes:
    hashes = (block.sha256 for block in blocks)
    return identity.digest(corpus.stored.name, corpus.token_counts.tolist(), hashes)


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
