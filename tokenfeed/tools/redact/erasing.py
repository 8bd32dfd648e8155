"""Erases the redacted tokens of a dataset from its disk: each file that has any is replaced by a
new one. It can be interrupted at any moment, and the same command goes on.

    begin     computes what the content will be, records what is erased (erased_files.py), and
              writes both to the list
    replace   for each file: a copy beside it, overwritten, synced, checked, renamed

From the moment at which the list says it, servers refuse rows that need these tokens. They serve
the files that they opened until they find the new ones (replaced_shards.py). A dataset is opened
whichever of its files are replaced (overlay.py). A delimiter of documents is not overwritten, or
documents would begin elsewhere. What streams are promised meanwhile: storage/exchanges.py.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokenfeed.errors import InvalidCorpus, InvalidRequest
from tokenfeed.server.datasets.content import (
    Content,
    fingerprint_of,
    fingerprint_of_file,
    full_digest,
)
from tokenfeed.server.datasets.redactions.erased_files import attribute_of, record
from tokenfeed.server.datasets.redactions.list_format import ErasedFile, Erasure, ListContent
from tokenfeed.server.datasets.redactions.list_writing import now, write_list
from tokenfeed.server.datasets.redactions.overlay import Overlay, files_left, overlay_of
from tokenfeed.server.datasets.redactions.ranges import TokenRanges
from tokenfeed.server.runtime.exceptions import log_safe_name
from tokenfeed.server.storage.digest_file import digest_path, write_digest
from tokenfeed.server.storage.door import door_of
from tokenfeed.server.storage.formats import GIVEN, Layout, recognize
from tokenfeed.server.storage.local.choice import mount_points
from tokenfeed.server.storage.local.files import LocalFile, open_local_file
from tokenfeed.server.storage.local.replacing import (
    CURE,
    copy_beside,
    remove_unused_copy,
    require_one_name,
    require_replaceable,
)
from tokenfeed.server.storage.store import TokenStore

_LOG = logging.getLogger("tokenfeed.server")

_PROGRESS_SECONDS = 5.0


def begin(
    path: str, content: ListContent, store: TokenStore, digest: bytes, delimiters: Sequence[int]
) -> ListContent:
    """Write to a list that the tokens of its latest ranges are erased, unless it says so.

    path: of the list, which is locked.  store: with a list that fits.  digest: of the dataset
    before any erasure, b"" if it is unknown.  delimiters: tokens that are left, those of any
    erasure before.
    Returns: what the list has now.
    Raises: InvalidCorpus, InvalidRequest; WriteFailed. If one of the files that still have such
    tokens cannot be replaced, then nothing was written.
    """
    before = content.erasure
    if before is not None:
        record(store, before, content.fill, is_listed=True)  # a replica may come without it
    listed = content.list_of(len(content.additions))
    if before is not None and before.list_hash == listed.hash:
        left = [one.file for one in files_left(store, content)]
        _require_replaceable(store, left, overlay_of(store, store.files.read, content))
        return content
    ranges, token_max = _to_erase(store, listed.ranges, delimiters)
    over = Overlay(store.files.read, ranges, content.fill, store.stored)
    original = digest or (before.original_digest if before is not None else b"")
    files = np.unique(ranges.files).tolist()
    _require_replaceable(store, [file for file in files if not over.is_erased(file)], over)
    erasure = Erasure(
        list_hash=listed.hash,
        ranges=ranges,
        fingerprint=fingerprint_of(store, Content(store, over.read).hashed()),
        digest=full_digest(store, over.read) if original else b"",
        original_digest=original,
        token_max=max(token_max, before.token_max if before else 0),
        delimiters=tuple(delimiters),
        files=tuple(ErasedFile(file, _fingerprint(store, over, file)) for file in files),
        when=now(),
    )
    # Before the list says it: what cannot be recorded is not begun.
    record(store, erasure, content.fill, is_listed=False)
    written = replace(content, erasure=erasure)
    write_list(path, written, store.shards[0].path)
    return written


def replace_files(content: ListContent, store: TokenStore) -> None:
    """Replace the files that still have tokens which a list says are erased.

    content: what `begin` returned; list and records are locked.  store: of the files as
    they are.  Raises: InvalidCorpus, WriteFailed.
    """
    erasure = content.erasure
    assert erasure is not None
    over, logged_at = overlay_of(store, store.files.read, content), time.monotonic()
    left = files_left(store, content)
    for erased in erasure.files:
        remove_unused_copy(_path_of(store, erased.file))
    for place, erased in enumerate(left):
        _replace(store, erased, over, content)
        if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            _LOG.info("erasing files=%d of=%d", place + 1, len(left))


def keep_digest(content: ListContent, store: TokenStore) -> None:
    """Store the digest of files that were all replaced, if it is known; logs why if it cannot."""
    if content.erasure is None or not content.erasure.digest:
        return
    try:
        write_digest(store, content.fingerprint, content.erasure.digest)
    except OSError as error:
        name = log_safe_name(digest_path(store))
        _LOG.warning("digest not kept file=%s: %s", name, error.strerror)


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
    left = [np.empty((3, 0), dtype=np.int64)]
    for file, first_byte, end_byte in listed.blocks(token_bytes):
        content = store.files.read(file, first_byte, end_byte - first_byte)
        tokens = np.frombuffer(content, store.stored)
        is_erased = listed.contains(file, first_byte // token_bytes, tokens.size)
        token_max = max(token_max, int(tokens[is_erased].max()))
        is_erased &= ~np.isin(tokens, delimiters)
        changes = np.diff(is_erased, prepend=False, append=False)
        bounds = np.flatnonzero(changes) + first_byte // token_bytes
        left.append(np.stack([np.full(bounds.size // 2, file), bounds[::2], bounds[1::2]]))
    return TokenRanges.merged(*np.concatenate(left, axis=1)), token_max


def _fingerprint(store: TokenStore, over: Overlay, file: int) -> bytes:
    """Return the fingerprint of a file without its erased tokens."""
    layout = store.shards[file].layout
    return fingerprint_of_file(layout, lambda first, size: over.read(file, first, size))


def _require_replaceable(store: TokenStore, files: Sequence[int], over: Overlay) -> None:
    """Raise an error if one of some files cannot be replaced: before the list says that it is.

    over: their content without the erased tokens.  Raises: InvalidCorpus, InvalidRequest,
    WriteFailed.
    """
    paths = [_path_of(store, file) for file in range(len(store.shards))]
    counts, mounted = Counter(paths), mount_points()
    for file in files:
        if counts[path := paths[file]] > 1:
            problem = "is several files of this dataset, by links, of which each would change"
            raise InvalidCorpus(store.shards[file].path, f"{problem}; make copies, {CURE}")
        with open_local_file(path) as original:
            require_one_name(original)
            _require_same_format(original, store.shards[file].layout, file, over)
            require_replaceable(original, mounted)


def _require_same_format(file: LocalFile, layout: Layout, number: int, over: Overlay) -> None:
    """Raise InvalidRequest if a file would be taken for something else without some tokens."""
    if layout.why == GIVEN:
        return
    first_byte = min(layout.first_byte, len(file.head))
    after = over.read(number, 0, min(layout.content_bytes, len(file.head) - first_byte))
    if recognize(replace(file, head=file.head[:first_byte] + after)) is not recognize(file):
        problem = f"{file.path} would look like another format with this token at its beginning"
        raise InvalidRequest("--fill", f"{problem}; pass another token, and --list FILE")


def _path_of(store: TokenStore, file: int) -> str:
    """Return the path of a file itself, where a dataset has a link."""
    path = store.shards[file].path
    return door_of(path).real(path)


def _replace(store: TokenStore, erased: ErasedFile, over: Overlay, content: ListContent) -> None:
    """Replace a file by one without its erased tokens.  Raises: InvalidCorpus, WriteFailed."""
    assert content.erasure is not None
    ranges = content.erasure.ranges.of_file(erased.file)
    path = _path_of(store, erased.file)
    layout, facts = store.shards[erased.file].layout, store.files.facts[erased.file]
    with open_local_file(path) as original, copy_beside(original) as copy:
        require_one_name(original)
        copy.fill()
        for file, first, end in ranges.blocks(layout.dtype.itemsize):
            copy.write(layout.first_byte + first, over.read(file, first, end - first))
        copy.sync()

        def read(first: int, size: int) -> bytes:
            return copy.read(layout.first_byte + first, size)

        if not copy.is_of(facts) or fingerprint_of_file(layout, read) != erased.fingerprint:
            problem = "is not the file whose tokens are erased, or was modified"
            raise InvalidCorpus(path, f"{problem}; restore it, or the list")
        copy.take_place(attribute_of(ranges, content.fill))
