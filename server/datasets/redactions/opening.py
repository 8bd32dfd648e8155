"""The lists of a dataset that is opened, whose bytes may have been erased since it was ingested.

What a dataset is called by, its fingerprint and its digest, is that of its bytes before any
erasure. So streams, saved states and replicas agree, whichever of them was erased.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...runtime.exceptions import log_safe_name
from ...storage.beside import path_beside
from ...storage.door import scheme_of
from ...storage.narrowing import Narrowing
from ...storage.store import TokenStore
from ..content import Scan
from .erased_files import require_listed
from .list_file import SUFFIX, ListedDataset, RedactionLists
from .list_format import ListContent
from .overlay import Read, overlay_of

_LOG = logging.getLogger("tokenfeed.server")


def list_path(store: TokenStore) -> str:
    """Return the path of the list beside a dataset; "" if nothing is written beside it: a list in a
    cache folder would hold for one user of one machine.
    """
    if scheme_of(store.shards[0].path):
        return ""
    return path_beside(store.shards, store.stored, SUFFIX)


def open_lists(
    path: str,
    content: ListContent | None,
    store: TokenStore,
    found: Scan,
    vocab_size: int | None,
) -> tuple[Scan, RedactionLists]:
    """Return what the scan of a store would have found before any erasure, and its lists.

    path, content: of the list file, which may not exist.  found: by a scan of what `read_as_erased`
    reads.  vocab_size: None if it is unknown.
    Raises: InvalidCorpus if it is of another dataset, or a file was modified.
    """
    require_listed(store, path, content)
    if content is not None and (erasure := content.erasure) is not None:
        if found.fingerprint != erasure.fingerprint or found.digest not in (b"", erasure.digest):
            raise InvalidCorpus(
                path,
                "says what was erased, but the tokens are neither the original ones nor those "
                "after the erasure: a file was modified, or the list is of another dataset; "
                "restore the file, or move the list away",
            )
        digest = erasure.original_digest if found.digest else b""
        found = replace(found, fingerprint=content.fingerprint, digest=digest)
        if vocab_size is None:
            # Else erased tokens might be the reason why they are served as another type.
            found = replace(found, token_max=max(found.token_max, erasure.token_max))
    served = Narrowing(store.stored, found.token_max).served
    fill_max = int(min(np.iinfo(store.stored).max, np.iinfo(served).max))
    if vocab_size is not None:
        fill_max = min(fill_max, vocab_size - 1)
    dataset = ListedDataset(found.fingerprint, store.shape.token_counts, fill_max)
    return found, RedactionLists(path, dataset, content)


def read_as_erased(store: TokenStore, read: Read, content: ListContent | None) -> Read:
    """Return how to read tokens so that it does not matter which files an erasure has replaced.

    read: of the store.  content: of its list; None if there is none.
    """
    if content is None or content.erasure is None:
        return read
    return overlay_of(store, read, content).read


def original_digest(content: ListContent | None, found: bytes) -> bytes:
    """Return the digest before any erasure, of files with this digest; b"" if it is unknown, as of
    files that are not all replaced.
    """
    if content is None or content.erasure is None:
        return found
    erasure = content.erasure
    return erasure.original_digest if found in (erasure.original_digest, erasure.digest) else b""


def log_lists(store: TokenStore, lists: RedactionLists) -> None:
    """Log which lists a dataset has."""
    if (content := lists.content) is None:
        if lists.path != list_path(store):
            _LOG.warning(
                "redactions not found dataset=%s file=%s: there is no list yet, so nothing is "
                "taken out; check the name that was given",
                store.name,
                log_safe_name(lists.path),
            )
    else:
        _LOG.info(
            "redactions opened dataset=%s lists=%d latest=%s erased=%s file=%s",
            store.name,
            len(content.additions),
            content.hashes[-1].hex(),
            content.erasure.list_hash.hex() if content.erasure else "none",
            log_safe_name(lists.path),
        )


def warn_of_delimiters(name: str, lists: RedactionLists, delimiters: Collection[int]) -> None:
    """Log if tokens were erased that may have been delimiters.  delimiters: of the documents."""
    erasure = None if lists.content is None else lists.content.erasure
    if erasure is not None and not set(delimiters) <= set(erasure.delimiters):
        _LOG.warning(
            "documents may have changed dataset=%s: tokens were erased without the option "
            "--document-end-token or --document-start-token that finds them",
            name,
        )
