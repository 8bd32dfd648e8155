"""Finds where the documents of a dataset begin: from the indices of its files, or by a search for
the tokens that separate them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from tokenfeed.errors import InvalidCorpus, Unreadable
from tokenfeed.stream import identity
from tokenfeed.stream.planes import DOCUMENT_STARTS

from ...runtime.exceptions import log_safe_name
from ..beside import file_facts
from ..formats import Documents
from ..store import TokenStore
from . import index_file
from .background_build import Stopped, never
from .delimiters import Delimiters, delimited_parts, require_occurring
from .document_starts import SPARSE, DocumentStarts, Places, StartIndex
from .index_builder import Content, Description, IndexBuilder, Progress
from .index_file import DamagedIndex
from .known_documents import Part, all_known, count_max, index_facts, known_parts
from .numbers import NUMBER, Numbers

_LOG = logging.getLogger("tokenfeed.server")

SUFFIX = ".tokenfeed-documents"
BACKGROUND_BYTES_MIN = 1 << 30
"""A corpus with more bytes of tokens is searched in the background. It takes seconds up to here,
as the fingerprint of all of it does."""
_ALONE_BYTES_MAX = 64 << 20
"""A corpus with more bytes of tokens is searched once by all processes of a machine, and the result
is kept however small it is. The search of this much takes a tenth of a second."""
_RETRY_SECONDS = 10.0
"""After a read of a search that failed with all its retries."""
_POLL_SECONDS = 0.1


def document_starts_of(
    store: TokenStore,
    delimiters: Delimiters | None = None,
    cache_dir: str | None = None,
    *,
    fingerprint: bytes = b"",
    vocab_size: int | None = None,
    share: bool = False,
    stopped: Stopped = never,
) -> DocumentStarts | None:
    """Return where the documents of a dataset begin; None if that is unknown.

    delimiters: the tokens that separate documents, if the format knows nothing of them.
    cache_dir: folder for the file of the index; None: beside the tokens.  fingerprint: of the
    tokens, which that file records.  vocab_size: that the delimiters have to be below; None if it
    is unknown.  share: whether they are found once by all processes of this machine that
    open the same files.  stopped: whether to stop, which raises InvalidCorpus.
    A large corpus has not been searched yet: `start` or `search_now` does. Close what is returned
    before the store.
    Raises: InvalidCorpus, with the file, the problem and the cure.
    """
    known = all_known(store.shards)
    if delimiters is None or (delimiters.are_general and known is not None):
        delimiters = Delimiters()
    delimiters.require_fit(store.shards, store.stored, vocab_size)
    if known is None and not delimiters.options:
        _log_unknown(store)
        return None
    builder = StartsBuilder(store, delimiters, known, cache_dir, fingerprint)
    make = builder.make_once if share else builder.make
    starts = DocumentStarts("document search failed", store.name, make)
    if (found := builder.find()) is not None:
        starts.take(found)
    else:
        require_occurring(store, delimiters)
        starts.is_search = builder.is_search
        if not starts.is_search:
            starts.run(stopped)
    return starts


def used_delimiters(store: TokenStore, delimiters: Delimiters) -> Delimiters:
    """Return the delimiters that are looked for: none if the format knows the documents."""
    return delimiters if all_known(store.shards) is None else Delimiters()


def _log_unknown(store: TokenStore) -> None:
    """Log which file is the reason why documents are unknown, if others know theirs."""
    unknown = [shard for shard in store.shards if shard.layout.documents is None]
    if len(unknown) < len(store.shards):
        _LOG.warning(
            "document borders unknown dataset=%s: %d of %d files have no index, first=%s",
            store.name,
            len(unknown),
            len(store.shards),
            log_safe_name(unknown[0].path),
        )


class StartsBuilder(IndexBuilder[Places, StartIndex]):
    """The starts of the documents of a dataset, to be found or made.

    is_search: whether all tokens of a large corpus are read, while it is served.
    """

    what = "document borders"
    others = "from other files, or with another delimiter"
    work = "finding documents"

    def __init__(
        self,
        store: TokenStore,
        delimiters: Delimiters,
        known: Sequence[Documents] | None,
        cache_dir: str | None,
        fingerprint: bytes,
    ) -> None:
        """Look at the files, before anything is read of them.

        known: the documents of each file; None if they are searched by delimiters.  fingerprint: of
        the tokens. Other files may have the same sizes and times, as in an image of a container
        whose build sets all times to one.
        Raises: InvalidCorpus if an index is gone.
        """
        content_bytes = store.shape.token_count * store.stored.itemsize
        self.is_search = known is None and content_bytes > BACKGROUND_BYTES_MIN
        self._delimiters = delimiters
        self._known = known
        self._opened_facts = store.files.facts
        if known is None:  # in an object store each search costs money
            is_stored = any(facts.tags for facts in self._opened_facts[:1])
            self._is_large = self.is_search or is_stored or content_bytes > _ALONE_BYTES_MAX
        else:  # so few are read from an index sooner than from a file
            self._is_large = NUMBER.itemsize * count_max(known) > index_file.MEMORY_BYTES_MAX
        has_file = (known is None or self._is_large) and len(store.files.facts) == len(store.shards)
        suffix = SUFFIX + delimiters.suffix if has_file else ""
        made_from = _facts(store, delimiters, known, fingerprint) if has_file else {}
        super().__init__(store, suffix, cache_dir, made_from)

    @property
    def takes_long(self) -> bool:
        """Whether the corpus, or the index of its documents, is large."""
        return self._is_large

    def _write(
        self, append: Callable[[bytes], None], progress: Progress
    ) -> tuple[Description, Numbers]:
        """Append the starts of all files.  Returns: their counts; and every 64th, counted over all
        files.
        """
        first_tokens = self.store.shape.token_counts.cumsum() - self.store.shape.token_counts
        counts = np.zeros(first_tokens.size, dtype=np.int64)
        sparse = [np.empty(0, dtype=np.int64)]
        total = 0
        for part in self._parts(progress):
            first_token = int(first_tokens[part.file])
            if part.starts.size:
                sparse.append(part.starts[-total % SPARSE :: SPARSE] + first_token)
                counts[part.file] += part.starts.size
                total += part.starts.size
                append(part.starts.astype(NUMBER).tobytes())
            progress.take((first_token + part.end_token) / self.store.shape.token_count)
        self._require_same_indices()
        return {"counts": counts.tolist()}, np.concatenate(sparse)

    def _parts(self, progress: Progress) -> Iterator[Part]:
        shards, stopped = self.store.shards, progress.stopped
        if self._known is not None:
            return known_parts(shards, self._known, stopped)
        read = self.store.files.read
        if self.is_search:
            read = partial(_read_with_patience, self.store, stopped)
        return delimited_parts(shards, self._delimiters, read, stopped)

    def _require_same_indices(self) -> None:
        """Raise InvalidCorpus if an index has changed while it was read."""
        if self._known is None or not (before := self.made_from.get("indices")):
            return
        now = index_facts([one.path for one in self._known])
        for documents, of_now, of_before in zip(self._known, now, before, strict=True):
            if of_now != of_before:
                problem = "changed while it was being opened; start again when it is complete"
                raise InvalidCorpus(documents.path, problem)

    def _is_kept(self, is_in_memory: bool, stopped: Stopped) -> bool:
        if is_in_memory and not self._is_large:
            return False
        # Compare more than the modification times, which can be set back.
        return not self.is_search or self.store.files.unchanged_since(self._opened_facts, stopped)

    def _facts_of(self, description: Description, number_count: int) -> Places:
        counts = np.array(description["counts"], dtype=np.int64)
        token_counts = self.store.shape.token_counts
        if not (
            counts.shape == token_counts.shape
            and (counts >= 1).all()
            and (counts <= token_counts).all()
            and counts.sum() == number_count
        ):
            raise DamagedIndex("is damaged")
        return Places.of(token_counts, counts)

    def _index_of(self, facts: Places, content: Content) -> StartIndex:
        counts = np.diff(facts.first_starts).tolist()
        fingerprint = identity.plane_fingerprint(DOCUMENT_STARTS, counts, content.hashes)
        return StartIndex(facts, content.table, content.numbers, fingerprint)

    def _log(self, event: str, index: StartIndex, path: str, seconds: float = 0.0) -> None:
        name, count = self.store.name, index.places.start_count
        if path or not index.is_held:
            _LOG.info(
                "document borders %s dataset=%s documents=%d file=%s",
                *(event, name, count, log_safe_name(path) or "none"),
            )
        if self.is_search and event == "made":
            _LOG.info(
                "document search ended dataset=%s documents=%d seconds=%.1f", name, count, seconds
            )


def _facts(
    store: TokenStore,
    delimiters: Delimiters,
    known: Sequence[Documents] | None,
    fingerprint: bytes,
) -> Description:
    """Return what starts depend on.  Raises: InvalidCorpus if an index is gone."""
    return {
        "dtype": store.stored.name,
        "tokens": fingerprint.hex(),
        "files": file_facts(store.files),
        "indices": None if known is None else index_facts([one.path for one in known]),
        "document_end_token": delimiters.end,
        "document_start_token": delimiters.start,
    }


def _read_with_patience(
    store: TokenStore, stopped: Stopped, file: int, first_byte: int, size_bytes: int
) -> bytes:
    """Return served token bytes, however long their file system fails: a search may take an hour.

    Raises: CorpusChanged; Unreadable once stopped() is true.
    """
    while not stopped():
        with suppress(Unreadable):
            return store.files.read_served(file, first_byte, size_bytes)
        end = time.monotonic() + _RETRY_SECONDS
        while time.monotonic() < end and not stopped():
            time.sleep(_POLL_SECONDS)
    return store.files.read_served(file, first_byte, size_bytes)
