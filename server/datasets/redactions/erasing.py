"""Overwrites the redacted tokens of a dataset on disk, in place. It can be interrupted at any
moment, and finished later.

    begin       computes what the content will be, and writes it to the list: "erasing"
    a pause     running servers look at the list, and refuse rows that need these tokens
    finish      overwrites the tokens, syncs them, checks the content; the list says "erased"

What is to be overwritten is written down first, so that finishing does not depend on what is left
of it. A delimiter of documents is not overwritten, or documents would begin elsewhere.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from tokenfeed.errors import InvalidCorpus, InvalidRequest, WriteFailed

from ...runtime.exceptions import log_safe_name
from ...storage.store import StoredShard, TokenStore
from ..content import Content, fingerprint_of, full_digest
from .erased_files import mark_files, names_of
from .laid_over import LaidOver, Read
from .list_content import Erasure, ListContent
from .list_writing import now, write_list
from .ranges import TokenRanges, Triple

_LOG = logging.getLogger("tokenfeed.server")

_PROGRESS_SECONDS = 5.0


def begin(
    path: str, content: ListContent, store: TokenStore, digest: bytes, delimiters: Sequence[int]
) -> ListContent | None:
    """Write to a list that the tokens of its latest ranges will be erased.

    path: of the list, which is locked.  store: with a list that fits, and no interrupted erasure.
    digest: of the dataset before any erasure, b"" if it is unknown.  delimiters: tokens that are
    left, those of any erasure before.
    Returns: what was written; None if all of it was erased before.
    Raises: InvalidCorpus; WriteFailed if a file cannot be written.
    """
    before = content.erasure
    listed = content.list_of(len(content.additions))
    ranges, token_max = _to_erase(store, listed.ranges, delimiters)
    over = LaidOver(store.read, ranges, content.fill, store.stored)
    if before is not None and before.list_hash == listed.hash and _is_erased(store, ranges, over):
        return None
    for file in np.unique(ranges.files).tolist():
        with _opened(store.shards[file]):
            pass  # it can be written
    erasure = Erasure(
        is_done=False,
        list_hash=listed.hash,
        ranges=ranges,
        fingerprint=_fingerprint(store, over.read),
        digest=full_digest(store, over.read) if digest else b"",
        original_digest=digest,
        token_max=max(token_max, before.token_max if before else 0),
        delimiters=tuple(delimiters),
        files=(),
        when=now(),
        names=names_of(store, ranges),
    )
    written = content.with_erasure(erasure)
    write_list(path, written)
    return written


def finish(
    path: str, content: ListContent, open_tokens: Callable[[], TokenStore], wait_seconds: float
) -> ListContent:
    """Erase what a list says is being erased, whatever was erased of it before.

    path: of the list, which is locked.  open_tokens: opens the files.  wait_seconds: first, for
    running servers.
    Returns: what was written.  Raises: InvalidCorpus, WriteFailed.
    """
    erasure = content.erasure
    assert erasure is not None
    with closing(open_tokens()) as store:
        try:
            erasure.ranges.require_within(store.shape.token_counts)
        except ValueError as problem:
            raise InvalidCorpus(path, f"has ranges that {problem}; restore it") from None
        over = LaidOver(store.read, erasure.ranges, content.fill, store.stored)
        # The files may be others than those that were being erased: then no byte is changed.
        _require_content(path, _fingerprint(store, over.read), erasure)
        if wait_seconds:
            _LOG.info("waiting %g s, until servers refuse these tokens", wait_seconds)
            time.sleep(wait_seconds)
        mark_files(store, erasure.ranges, content.fill)
        _overwrite(store, erasure.ranges, over)
    with closing(open_tokens()) as store:
        _require_content(path, _fingerprint(store, store.read), erasure)
        if erasure.digest:
            _keep_digest(store, erasure.digest)
        files = tuple((facts.size_bytes, facts.mtime_ns) for facts in store.facts)
    written = replace(content, erasure=replace(erasure, is_done=True, files=files, when=now()))
    write_list(path, written)
    return written


def require_same_delimiters(content: ListContent, delimiters: Sequence[int]) -> None:
    """Raise InvalidRequest if tokens were erased before and other delimiters were left, or the list
    was made with a delimiter that would be erased.
    """
    if not set(content.delimiters) <= set(delimiters):
        named = " and ".join(map(str, content.delimiters))
        problem = f"the list was made with {named} between documents"
        raise InvalidRequest("--erase", f"{problem}; pass the same, which is not erased")
    before = content.erasure
    if before is not None and before.delimiters != tuple(delimiters):
        named = " and ".join(map(str, before.delimiters)) or "no delimiter"
        problem = f"tokens were erased before with {named} between documents"
        raise InvalidRequest("--erase", f"{problem}; pass the same ones")


def _to_erase(
    store: TokenStore, listed: TokenRanges, delimiters: Sequence[int]
) -> tuple[TokenRanges, int]:
    """Return ranges without delimiters, and the greatest token in them."""
    token_bytes = store.stored.itemsize
    token_max = 0
    left: list[Triple] = []
    for file, first_byte, end_byte in listed.pieces(token_bytes):
        content = store.read(file, first_byte, end_byte - first_byte)
        tokens = np.frombuffer(content, store.stored)
        token_max = max(token_max, int(tokens.max()))
        first, end = first_byte // token_bytes, end_byte // token_bytes
        bounds = [first - 1, *(np.flatnonzero(np.isin(tokens, delimiters)) + first).tolist(), end]
        left += [(file, one + 1, other) for one, other in pairwise(bounds) if one + 1 < other]
    return TokenRanges.of(left), token_max


def _is_erased(store: TokenStore, ranges: TokenRanges, over: LaidOver) -> bool:
    return all(
        store.read(file, first, end - first) == over.filled(first, end)
        for file, first, end in ranges.pieces(store.stored.itemsize)
    )


def _overwrite(store: TokenStore, ranges: TokenRanges, over: LaidOver) -> None:
    """Overwrite tokens that are not yet erased, and sync their files.

    Raises: InvalidCorpus, WriteFailed.
    """
    done, total, logged_at = 0, ranges.token_count * store.stored.itemsize, time.monotonic()
    for file, pieces in groupby(ranges.pieces(store.stored.itemsize), itemgetter(0)):
        shard = store.shards[file]
        # Also what a killed process has written is synced.
        with _opened(shard) as descriptor, _write_errors(shard.path):
            for _, first, end in pieces:
                _write(descriptor, shard.layout.first_byte + first, over.filled(first, end))
                done += end - first
                if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
                    logged_at = time.monotonic()
                    _LOG.info("erasing done=%.1f%%", 100 * done / total)
            os.fsync(descriptor)


@contextmanager
def _opened(shard: StoredShard) -> Iterator[int]:
    """Lend the descriptor of a file, to overwrite it.  Raises: InvalidCorpus, WriteFailed."""
    end_byte = shard.layout.first_byte + shard.layout.content_bytes
    with _write_errors(shard.path):
        descriptor = os.open(shard.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < end_byte:
            problem = "changed while its tokens were to be erased; restore it"
            raise InvalidCorpus(shard.path, problem)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a WriteFailed that says what to do."""
    try:
        yield
    except OSError as error:
        cure = "make it writable, and run the same command again"
        raise WriteFailed(path, f"cannot be written: {error.strerror}; {cure}") from error


def _write(descriptor: int, place: int, content: bytes) -> None:
    """Overwrite bytes, unless they are the same.  Raises: OSError."""
    if os.pread(descriptor, len(content), place) == content:
        return
    left = memoryview(content)
    while left:
        count = os.pwrite(descriptor, left, place)
        place, left = place + count, left[count:]


def _fingerprint(store: TokenStore, read: Read) -> bytes:
    return fingerprint_of(store, Content(store, read).hashed())


def _require_content(path: str, found: bytes, erasure: Erasure) -> None:
    if found != erasure.fingerprint:
        problem = "the files are not those whose tokens are being erased"
        raise InvalidCorpus(path, f"{problem}, or were modified; restore them, or this list")


def _keep_digest(store: TokenStore, digest: bytes) -> None:
    try:
        store.keep_digest(digest)
    except OSError as error:
        name = log_safe_name(store.digest_path)
        _LOG.warning("digest not kept file=%s: %s", name, error.strerror)
