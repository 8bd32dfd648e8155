"""Opens a dataset: its files are found, checked and fingerprinted.

The files are read once at the start, without the gather and in several threads: all of a corpus up
to 1 GiB, and blocks spread over a larger one. The same pass checks for invalid tokens.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from tokenfeed.errors import InvalidCorpus
from tokenfeed.stream import identity

from ..runtime.exceptions import log_safe_name
from ..storage.digest_file import read_digest
from ..storage.documents import (
    Delimiters,
    DocumentStarts,
    RowIndices,
    document_starts_of,
    used_delimiters,
)
from ..storage.door import StorageOptions, door_of, scheme_of
from ..storage.formats import FormatOptions
from ..storage.halves import require_no_halves
from ..storage.objects.counts import REQUESTS
from ..storage.store import TokenStore, open_store
from .content import Content, Scan, digest_of, fingerprint_of, with_progress
from .dataset import Dataset
from .options import PlaneOptions
from .planes.loss_masks import masks_beside, open_loss_mask
from .plausibility import require_plausible
from .redactions.list_file import read_list
from .redactions.opening import (
    list_path,
    log_lists,
    open_lists,
    original_digest,
    read_as_erased,
    warn_of_delimiters,
)
from .redactions.replaced_shards import ReplacedShards
from .shared_scan import scan_once
from .sources import DatasetSource
from .sources.manifest import ManifestSplit, require_listed

_LOG = logging.getLogger("tokenfeed.server")


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """How to check tokens.

    vocab_size: ids at or above it are an error; None if unknown.  all_tokens: check every token,
    even if the fingerprint covers a sample.  serves: whether the dataset will be served.
    """

    vocab_size: int | None = None
    all_tokens: bool = False
    serves: bool = True


def open_dataset(
    source: DatasetSource,
    options: FormatOptions,
    checks: TokenChecks,
    storage: StorageOptions | None = None,
    *,
    planes: PlaneOptions | None = None,
    share: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Dataset:
    """Open a dataset's files, check them and compute their fingerprint.

    Tokens that are narrowed before they are served are all scanned, unless vocab_size is known.
    planes: where its planes are; by default beside the files.
    share: whether to use the scan (`scan_once`) and the indices of other processes of this machine.
    stopped: whether to stop reading, which raises InvalidCorpus.
    Raises: InvalidCorpus, with the file, the problem and the cure.
    """
    storage, planes = storage or StorageOptions(), planes or PlaneOptions()
    # In a store, a scan costs money, and a start is to be soon.
    share = share or (bool(scheme_of(source.paths[0])) and checks.serves)
    with door_of(source.paths[0]).opening():
        return _opened(source, options, checks, storage, planes, share, stopped)


def _opened(
    source: DatasetSource,
    options: FormatOptions,
    checks: TokenChecks,
    storage: StorageOptions,
    planes: PlaneOptions,
    share: bool,
    stopped: Callable[[], bool],
) -> Dataset:
    if source.split is not None:
        require_listed(source.split)
    masks = planes.loss_masks or masks_beside(source.paths)
    store, why_store = open_store(source.name, source.paths, options, storage)
    try:
        dataset = dataset_of(
            store,
            checks,
            source.split,
            why_store,
            format_is_given=options.format is not None,
            redactions=planes.redactions or list_path(store),
            share=share,
            stopped=stopped,
        )
        if masks:
            mask = open_loss_mask(store, masks, storage, share=share, stopped=stopped)
            dataset.add_plane_files(mask)
        dataset.document_starts = document_starts_of(
            store,
            planes.delimiters,
            planes.cache_dir,
            fingerprint=dataset.fingerprint,
            vocab_size=checks.vocab_size,
            share=share,
            stopped=stopped,
        )
        delimiters = used_delimiters(store, planes.delimiters)
        if dataset.document_starts is not None:
            if scheme_of(source.paths[0]) and checks.serves:
                _require_no_download(store, dataset.document_starts, delimiters)
            store.add_plane(dataset.document_starts)
        if dataset.redactions is not None:
            warn_of_delimiters(store.name, dataset.redactions, delimiters.options.values())
        if store.shape.row_tokens is not None:
            return dataset  # whose rows are those of the files
        dataset.rows = RowIndices(
            store,
            dataset.document_starts,
            delimiters.end,
            planes.cache_dir,
            dataset.fingerprint,
            pack_options=(*options.words, *delimiters.words),
        )
        store.shape.document_rows = dataset.rows.get
    except BaseException:
        store.close()
        raise
    return dataset


def dataset_of(
    store: TokenStore,
    checks: TokenChecks,
    split: ManifestSplit | None = None,
    why_store: str = "",
    *,
    format_is_given: bool | None = None,
    redactions: str | None = None,
    share: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Dataset:
    """Check the content of a store and compute its fingerprint; like `open_dataset`, for any store.

    split: that of its manifest.  why_store: the reason for its kind of store.  format_is_given:
    whether the user has said what the files are; None: they are not looked at.  redactions: path of
    the list of redacted tokens; None if there can be none.
    """
    listed = None if redactions is None else read_list(redactions)
    read = read_as_erased(store, store.files.read, listed)
    erasure = None if listed is None else listed.erasure
    if erasure is not None:
        format_is_given = None  # what replaces tokens need not look like any; those before did

    def scan(stopped: Callable[[], bool]) -> Scan:
        found = scan_content(store, checks, read, stopped)
        if format_is_given is not None:
            require_plausible(store, format_is_given)
        return found

    checked = (checks, erasure and erasure.fingerprint, format_is_given)
    found = scan_once(store, checked, scan, stopped) if share else scan(stopped)
    lists = replaced_shards = None
    if redactions is not None:
        found, lists = open_lists(redactions, listed, store, found, checks.vocab_size)
        replaced_shards = ReplacedShards(lists)
        store.files.allow_replacement(replaced_shards.is_erased_file)
        for erased in erasure.files if erasure else ():
            replaced_shards.check_served(store, erased.file)
    if not found.digest and split is None:
        known = read_digest(store, found.fingerprint)
        found = replace(found, digest=original_digest(listed, known))
    store.narrow(found.token_max)
    rows = store.shape.row_tokens
    if split and identity.fingerprint_of_rows(split.fingerprint, rows) != found.fingerprint:
        problem = "does not match its manifest: a shard was modified or replaced; restore it"
        raise InvalidCorpus(os.path.dirname(store.shards[0].path), problem)
    digest = found.digest or (b"" if split is None else split.digest)
    return Dataset(
        store.name,
        store,
        found.fingerprint,
        digest,
        why_store,
        redactions=lists,
        replaced_shards=replaced_shards,
    )


def _require_no_download(store: TokenStore, starts: DocumentStarts, delimiters: Delimiters) -> None:
    """Raise InvalidCorpus if all of a large corpus would be fetched to search for its documents."""
    if starts.is_search and not starts.is_known:
        size_bytes = store.shape.token_count * store.stored.itemsize
        problem = f"its documents are not known, and a search would fetch {size_bytes / 1e9:.0f} GB"
        cure = f"run tokenfeed pack on it once, with {' '.join(delimiters.words)}, which keeps what"
        cure += " it finds in the cache folder of this machine"
        raise InvalidCorpus(store.shards[0].path, f"{problem}; {cure}", *delimiters.options)


def log_opened(dataset: Dataset) -> None:
    """Log what a dataset is, and what was assumed."""
    store, layout = dataset.store, dataset.store.shards[0].layout
    _LOG.info(
        "dataset opened dataset=%s format=%s files=%d tokens=%d dtype=%s served=%s fingerprint=%s "
        "read=%s because=%s",
        dataset.name,
        layout.format,
        len(store.shards),
        store.shape.token_counts.sum(),
        store.stored.name,
        store.dtype.name,
        dataset.fingerprint.hex(),
        store.files.kind,
        dataset.why_store,
    )
    if scheme_of(store.shards[0].path):
        requests = REQUESTS.by_reason.values()
        _LOG.info(
            "objects opened dataset=%s objects=%d requests=%d bytes=%d (of this process so far)",
            dataset.name,
            len(store.shards),
            sum(each.gets for each in requests),
            sum(each.size_bytes for each in requests),
        )
    for plane in dataset.plane_files:
        _LOG.info(
            "%s opened dataset=%s files=%d first=%s read=%s",
            plane.name,
            dataset.name,
            len(plane.store.shards),
            log_safe_name(plane.store.shards[0].path),
            plane.store.files.kind,
        )
    if dataset.redactions is not None:
        log_lists(store, dataset.redactions)
    assumed = [shard.layout for shard in store.shards if shard.layout.dtype_assumed]
    if assumed:
        _LOG.info(
            "format assumed dataset=%s format=%s dtype=%s files=%d: %s; the options format and "
            "dtype override it",
            dataset.name,
            layout.format,
            layout.dtype.name,
            len(assumed),
            assumed[0].why,
        )


def scan_content(
    store: TokenStore,
    checks: TokenChecks,
    read: Callable[[int, int, int], bytes],
    stopped: Callable[[], bool] = lambda: False,
) -> Scan:
    """Read the content of a store as far as the fingerprint covers it, or the checks need it.

    read: `read` of the store, or what `read_as_erased` returns.  Raises: InvalidCorpus.
    """
    content = Content(store, read, stopped)
    whole = content.size_bytes <= identity.COMPLETE_BYTES_MAX
    # The blocks that the fingerprint covers.
    first_pass = list(content.scan(checks.vocab_size))
    if read == store.files.read:  # what replaces erased tokens need not look like any
        require_no_halves(store, (block.halves for block in first_pass))
    token_max = max(block.token_max for block in first_pass)
    if checks.vocab_size is not None:
        token_max = checks.vocab_size - 1
    narrowed = checks.serves and store.narrowing.needs_scan and checks.vocab_size is None
    if (checks.all_tokens or narrowed) and not whole:
        found = content.scan(checks.vocab_size, complete=True)
        for block in with_progress(found, content.size_bytes):
            token_max = max(token_max, block.token_max)
    digest = digest_of(store, (block.sha256 for block in first_pass)) if whole else b""
    return Scan(fingerprint_of(store, first_pass), digest, token_max)
