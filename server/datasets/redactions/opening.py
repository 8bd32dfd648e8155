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
from .list_content import ListContent, State
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
    content, state = read_list(path), None
    if content is not None:
        found, state = _before_erasure(path, content, found)
        if vocab_size is None and content.erasure is not None:
            # Else erased tokens might be the reason why they are served as another type.
            found = replace(found, token_max=max(found.token_max, content.erasure.token_max))
    served = Narrowing(store.stored, found.token_max).served
    fill_max = int(min(np.iinfo(store.stored).max, np.iinfo(served).max))
    if vocab_size is not None:
        fill_max = min(fill_max, vocab_size - 1)
    dataset = ListedDataset(found.fingerprint, store.shape.token_counts, fill_max)
    lists = RedactionLists(path, dataset, content, state)
    if not takes_over:
        require_listed(store, path, content)
    return found, lists


def _before_erasure(path: str, content: ListContent, found: Scan) -> tuple[Scan, State | None]:
    """Return what a scan would have found, and what the files are; None if the list does not fit.

    Of large files a sample was read, which may be the same in several states: then they are taken
    for the latest of these, so that no erased token is served.
    Raises: InvalidCorpus.
    """
    erasure = content.erasure
    if erasure is not None and not erasure.is_done:
        cure = "run the same tokenfeed redact --erase again, which finishes it"
        raise InvalidCorpus(path, f"says that an erasure was interrupted; {cure}")
    states = [each for each in content.states if each.fingerprint == found.fingerprint]
    if not states:
        return found, None
    if found.digest and erasure is not None:
        states = [each for each in states if each.digest in (b"", found.digest)]
    digest = original_digest(content, found.digest)
    if not states or digest is None:
        problem = "the tokens are neither the original ones, nor those after an erasure"
        raise InvalidCorpus(path, f"{problem}: a file was modified; restore it")
    return replace(found, fingerprint=content.fingerprint, digest=digest), states[-1]


def original_digest(content: ListContent | None, found: bytes) -> bytes | None:
    """Return the digest before any erasure, of content with this digest: b"" if it is unknown, None
    if it is neither that before any erasure, nor that after one.
    """
    if content is None or content.erasure is None or not found:
        return found
    known = [each.digest for each in content.states]
    if found in known:
        return content.erasure.original_digest
    return None if all(known) else b""


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
