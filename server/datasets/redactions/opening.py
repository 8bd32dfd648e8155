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
from ...storage.kept.container import kept_paths
from ...storage.narrowing import Narrowing
from ...storage.store import TokenStore
from ..content import Scan
from .erased_files import require_listed
from .list_content import Erasure, ListContent
from .list_file import SUFFIX, ListedDataset, RedactionLists, read_list

_LOG = logging.getLogger("tokenfeed.server")

OPTION = "--redactions"


def list_path(store: TokenStore) -> str:
    """Return the path of the list beside a dataset."""
    return kept_paths(store.shards, store.stored, SUFFIX, None)[0]


def opened_lists(
    path: str, store: TokenStore, found: Scan, vocab_size: int | None, *, takes_over: bool = False
) -> tuple[Scan, RedactionLists]:
    """Return what the scan of a store would have found before any erasure, and its lists.

    path: of the list file, which may not exist.  vocab_size: None if it is unknown.  takes_over:
    whether files may have erased tokens that the list does not say.
    Raises: InvalidCorpus if it is of another dataset, or an erasure was interrupted.
    """
    content = read_list(path)
    if content is not None:
        found = _before_erasure(path, content, found)
        if vocab_size is None and content.erasure is not None:
            # Else erased tokens might be the reason why they are served as another type.
            found = replace(found, token_max=max(found.token_max, content.erasure.token_max))
    served = Narrowing(store.stored, found.token_max).served
    fill_max = int(min(np.iinfo(store.stored).max, np.iinfo(served).max))
    if vocab_size is not None:
        fill_max = min(fill_max, vocab_size - 1)
    dataset = ListedDataset(found.fingerprint, store.shape.token_counts, fill_max)
    lists = RedactionLists(path, dataset, content)
    if not takes_over:
        require_listed(store, path, content)
    return found, lists


def _before_erasure(path: str, content: ListContent, found: Scan) -> Scan:
    """Return what a scan would have found.  Raises: InvalidCorpus."""
    erasure = content.erasure
    if erasure is None:
        return found
    if not erasure.is_done:
        cure = "run the same tokenfeed redact --erase again, which finishes it"
        raise InvalidCorpus(path, f"says that an erasure was interrupted; {cure}")
    if found.fingerprint not in (content.fingerprint, erasure.fingerprint):
        return found  # which the list does not fit
    digest = original_digest(erasure, found.digest)
    if digest is None:
        problem = "the tokens are neither those before the last erasure, nor those after it"
        raise InvalidCorpus(path, f"{problem}: a file was modified; restore it")
    return replace(found, fingerprint=content.fingerprint, digest=digest)


def original_digest(erasure: Erasure | None, found: bytes) -> bytes | None:
    """Return the digest before any erasure, of content with this digest: b"" if it is unknown, None
    if it is neither that before the last erasure, nor that after it.
    """
    if erasure is None or not found or found == erasure.original_digest:
        return found
    if not erasure.digest:
        return b""
    return erasure.original_digest if found == erasure.digest else None


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
