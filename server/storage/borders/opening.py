"""The borders of a dataset: from the indices of its files, a kept file, or a search."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenfeed.errors import InvalidCorpus, Unreadable

from ...runtime.exceptions import log_safe_name
from ..formats import Documents
from ..kept.collected import Collected, mappable
from ..kept.container import kept_paths
from ..store import TokenStore
from . import writing
from .delimiters import Delimiters, delimited_parts, require_occurring
from .kept import SUFFIX, closing, find_kept, index_facts, made_from
from .known import Part, all_known, count_max, known_parts
from .reading import ENTRY, WHAT, Borders, Entries, MappedEntries, MemoryEntries
from .search import BorderSearch
from .writing import Collector

_LOG = logging.getLogger("tokenfeed.server")

BACKGROUND_BYTES_MIN = 1 << 30
"""A corpus with more bytes of tokens is searched in the background. It takes seconds up to here,
as the fingerprint of all of it does."""
_PROGRESS_SECONDS = 5.0
_RETRY_SECONDS = 10.0
"""After a read of a search that failed with all its retries."""
_POLL_SECONDS = 0.1


def borders_of(
    store: TokenStore,
    delimiters: Delimiters | None = None,
    cache_dir: str | None = None,
    *,
    fingerprint: bytes = b"",
    vocab_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Borders | BorderSearch | None:
    """Return where the documents of a dataset begin; None if that is unknown.

    delimiters: the tokens that separate documents, if the format knows nothing of them.
    cache_dir: folder for files that are kept; None: they are kept beside the tokens.  fingerprint:
    of the tokens, which a kept file records.  vocab_size: that the delimiters have to be below;
    None if it is unknown.  stopped: whether to stop, which raises InvalidCorpus.
    A search that is returned has not been started. Close what is returned before the store.
    Raises: InvalidCorpus, with the file, the problem and the cure.
    """
    known = all_known(store.shards)
    if delimiters is None or (delimiters.are_general and known is not None):
        delimiters = Delimiters()
    delimiters.require_fit(store.shards, store.stored, vocab_size)
    if known is None and not delimiters.options:
        _log_unknown(store)
        return None
    job = _Job(store, cache_dir, known, _facts(store, delimiters, known, fingerprint))
    if (found := job.found_again()) is not None:
        return found
    require_occurring(store, delimiters)
    if known is not None:
        return job.made(known_parts(store.shards, known, stopped))
    if store.shape.token_count * store.stored.itemsize > BACKGROUND_BYTES_MIN:
        return BorderSearch(store.name, partial(job.searched, delimiters))
    return job.made(delimited_parts(store.shards, delimiters, store.read, stopped))


def used_delimiters(store: TokenStore, delimiters: Delimiters) -> Delimiters:
    """Return the delimiters that `borders_of` looks for: none if the format knows the documents."""
    return delimiters if all_known(store.shards) is None else Delimiters()


def _log_unknown(store: TokenStore) -> None:
    """Log which file is the reason why borders are unknown, if others know their documents."""
    unknown = [shard for shard in store.shards if shard.layout.documents is None]
    if len(unknown) < len(store.shards):
        _LOG.warning(
            "document borders unknown dataset=%s: %d of %d files have no index, first=%s",
            store.name,
            len(unknown),
            len(store.shards),
            log_safe_name(unknown[0].path),
        )


def _facts(
    store: TokenStore,
    delimiters: Delimiters,
    known: Sequence[Documents] | None,
    fingerprint: bytes,
) -> dict[str, Any] | None:
    """Return what a kept file has to be made from; None if the entries are so few that none is
    kept, or if the store has no files.
    """
    are_few = known is not None and count_max(known) * ENTRY.itemsize <= writing.MEMORY_BYTES_MAX
    if are_few or len(store.facts) != len(store.shards):
        return None
    return made_from(store, delimiters, known, fingerprint)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the borders of a dataset are made from, and how.

    known: the documents of each file; None if they have to be searched.  facts: of the files,
    before anything was read; None if nothing is kept.
    """

    store: TokenStore
    cache_dir: str | None
    known: Sequence[Documents] | None
    facts: dict[str, Any] | None

    def found_again(self) -> Borders | None:
        """Return the borders of a kept file; None if there is none that can be used."""
        kept = None if self.facts is None else find_kept(self._paths, self.facts)
        if kept is None:
            return None
        entries: Entries
        try:
            with mappable(WHAT, self.store):
                if kept.entries is not None:
                    entries = MemoryEntries(kept.places, kept.entries)
                else:
                    entries = MappedEntries(
                        self.store.name, kept.places, kept.sparse, kept.descriptor, kept.path
                    )
        finally:
            kept.close()
        self._log("found", kept.places.entry_count, kept.path)
        return Borders(entries, kept.places.entry_count, kept.fingerprint)

    def made(
        self,
        parts: Iterable[Part],
        *,
        keep: bool = False,
        unchanged: Callable[[], bool] = lambda: True,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> Borders:
        """Return borders made from parts.

        keep: whether they are kept even if they are few.  unchanged: whether the tokens are still
        those of the start; called at the end.
        Raises: InvalidCorpus; what the parts raise.
        """
        store = self.store
        content = Collected(WHAT, store, self._paths, writing.MEMORY_BYTES_MAX)
        collector = Collector(store.shape.token_counts, content)
        try:
            for part in self._with_progress(parts, on_progress):
                collector.add(part)
            self._require_same_indices()
            named = unchanged() and (keep or not content.is_in_memory)
            fingerprint = collector.fingerprint()
            end = closing(collector, self.facts or {}, fingerprint)
            path = content.complete(end, named=named)
            if path or not content.is_in_memory:
                self._log("made", collector.count, path)
            return Borders(self._entries(content, collector), collector.count, fingerprint)
        finally:
            content.close()

    def _entries(self, content: Collected, collector: Collector) -> Entries:
        if content.is_in_memory:
            return MemoryEntries(collector.places, content.in_memory())
        name, places, sparse = self.store.name, collector.places, collector.sparse
        return content.mapped(
            lambda descriptor, path: MappedEntries(name, places, sparse, descriptor, path)
        )

    def searched(
        self,
        delimiters: Delimiters,
        stopped: Callable[[], bool],
        on_progress: Callable[[float], None],
    ) -> Borders:
        """Search for delimiters while the store is served; a Search with delimiters."""
        store = self.store
        facts = store.facts
        began = time.monotonic()
        read = partial(_read_with_patience, store, stopped)
        borders = self.made(
            delimited_parts(store.shards, delimiters, read, stopped),
            keep=True,
            # Compare more than the modification times, which can be set back.
            unchanged=lambda: store.unchanged_since(facts, stopped),
            on_progress=on_progress,
        )
        _LOG.info(
            "document search ended dataset=%s documents=%d seconds=%.1f",
            store.name,
            borders.count,
            time.monotonic() - began,
        )
        return borders

    @property
    def _paths(self) -> tuple[str, ...]:
        if self.facts is None:
            return ()
        return kept_paths(self.store.shards, self.store.stored, SUFFIX, self.cache_dir)

    def _with_progress(
        self, parts: Iterable[Part], on_progress: Callable[[float], None]
    ) -> Iterator[Part]:
        """Yield parts, and log the progress."""
        first_tokens = self.store.shape.token_counts.cumsum() - self.store.shape.token_counts
        logged_at = time.monotonic()
        for part in parts:
            yield part
            done = (int(first_tokens[part.file]) + part.end_token) / self.store.shape.token_count
            on_progress(done)
            if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
                logged_at = time.monotonic()
                _LOG.info("finding documents dataset=%s done=%.1f%%", self.store.name, 100 * done)

    def _require_same_indices(self) -> None:
        """Raise InvalidCorpus if an index has changed while it was read."""
        if self.facts is None or self.known is None:
            return
        for documents, before in zip(self.known, self.facts["indices"], strict=True):
            if index_facts(documents.path) != before:
                problem = "changed while it was being opened; start again when it is complete"
                raise InvalidCorpus(documents.path, problem)

    def _log(self, what: str, count: int, path: str) -> None:
        _LOG.info(
            "document borders %s dataset=%s documents=%d file=%s",
            what,
            self.store.name,
            count,
            log_safe_name(path) or "none",
        )


def _read_with_patience(
    store: TokenStore, stopped: Callable[[], bool], file: int, first_byte: int, size_bytes: int
) -> bytes:
    """Return served token bytes, however long their file system fails: a search may take an hour.

    Raises: CorpusChanged; Unreadable once stopped() is true.
    """
    while not stopped():
        with suppress(Unreadable):
            return store.read_served(file, first_byte, size_bytes)
        _wait(_RETRY_SECONDS, stopped)
    return store.read_served(file, first_byte, size_bytes)


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    """Wait, at most until stopped() is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        time.sleep(_POLL_SECONDS)
