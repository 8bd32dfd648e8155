"""Makes the rows of a dataset, file by file, and keeps them in a file; or finds them there.

The memory is bounded by the documents of the file of tokens with most of them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.document_rows import (
    DocumentStats,
    FilePieces,
    RowsKey,
    document_lengths,
)
from tokenfeed.sampling.orders import packed_v1, padded_v1
from tokenfeed.stream import identity

from ...runtime.exceptions import log_safe_name
from ...runtime.threads.executors import Executor
from ..borders import Borders
from ..kept.collected import Collected
from ..kept.container import kept_paths
from ..kept.mapped import NUMBER, HeldNumbers, KeptNumbers, MappedNumbers, Numbers
from ..store import TokenStore
from . import kept
from .files import Append, FileDocuments, FileRows, write_rows
from .kept import closing, find_kept, made_from, suffix_of, what_of
from .reading import FILE_TOKENS_MAX, FOOTER, IndexFacts, RowIndex

_LOG = logging.getLogger("tokenfeed.server")

_PROGRESS_SECONDS = 5.0
# packed-1 of a file took 42 to 51 bytes a document of web or chat lengths with T from 2048 on, 273
# with T = 64, and 809 of books with T = 2048, which have 16 and 48 rows each; padded-1 16 to 27.
# tests/server/storage/rows/test_making.py holds it; 2026-11.
_DOCUMENT_BYTES = {packed_v1.NAME: 48, padded_v1.NAME: 20}
_PIECE_BYTES = {packed_v1.NAME: 18, padded_v1.NAME: 1}
"""Memory that a document takes while the rows of its file are made, and each T tokens more."""

Write = Callable[[Append], DocumentStats]
"""Writes the rows of a file, and returns what became of its documents."""


@dataclass(frozen=True, slots=True)
class RowsJob:
    """The rows of a dataset, to be found or made.

    delimiter: the token that ends a document; None if the format defines it.  cache_dir: folder for
    files that are kept; None: beside the tokens.  fingerprint: of the tokens.
    """

    store: TokenStore
    borders: Borders
    delimiter: int | None
    cache_dir: str | None
    fingerprint: bytes
    key: RowsKey

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the file may be, in order; none if the store has no files."""
        if len(self.store.facts) != len(self.store.shards):
            return ()
        suffix = suffix_of(self.key, self.borders.fingerprint)
        return kept_paths(self.store.shards, self.store.stored, suffix, self.cache_dir)

    @property
    def memory_bytes(self) -> int:
        """How much memory `made` takes in this process, about: that of one file at a time."""
        pieces = self.store.shape.token_counts // self.key.context_length
        of_document, of_piece = _DOCUMENT_BYTES[self.key.order], _PIECE_BYTES[self.key.order]
        return int((of_document * self.borders.counts + of_piece * pieces).max())

    def found(self) -> RowIndex | None:
        """Return the rows of a kept file; None if there is none that can be used."""
        index = find_kept(self.store.name, self.key, self.paths, self._made_from)
        if index is not None:
            self._log("found", index)
        return index

    def made(
        self,
        stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[float], None] = lambda share: None,
        run: Executor[FileDocuments, RowsKey, FileRows] | None = None,
    ) -> RowIndex:
        """Make the rows, and keep them.

        stopped: whether to stop, which raises InvalidCorpus.  on_progress: is given the share of
        the documents that is done.  run: makes the rows of files, if other processes do.
        Raises: InvalidCorpus, CorpusChanged, Unreadable.
        """
        self._require_small_files()
        began = time.monotonic()
        content = Collected(what_of(self.key), self.store, self.paths, kept.MEMORY_BYTES_MAX)
        try:
            progress = _Progress(self, stopped, on_progress)
            lengths = _Lengths()
            files = self._files(progress, lengths)
            if run is not None:
                files = self._files_by(run, progress, lengths)
            facts = self._written(content, files, lengths)
            index = self._finished(content, facts)
        finally:
            content.close()
        self._log("made", index, f" seconds={time.monotonic() - began:.1f}")
        return index

    def _files(self, progress: _Progress, lengths: _Lengths) -> Iterator[Write]:
        """Yield what writes the rows of each file, in order."""
        for file in range(len(self.store.shards)):
            yield self._begun(file, progress, lengths)

    def _begun(self, file: int, progress: _Progress, lengths: _Lengths) -> Write:
        token_count = int(self.store.shape.token_counts[file])
        pieces = FilePieces.of(self.borders.starts_of(file), token_count, self.key)
        lengths.add(pieces.lengths)
        progress.begin(pieces.lengths.size)
        return partial(write_rows, pieces, on_share=progress.take_share)

    def _files_by(
        self,
        run: Executor[FileDocuments, RowsKey, FileRows],
        progress: _Progress,
        lengths: _Lengths,
    ) -> Iterator[Write]:
        """Like `_files`; other processes make the rows."""

        def sent() -> Iterator[FileDocuments]:
            for file, token_count in enumerate(self.store.shape.token_counts.tolist()):
                starts = self.borders.starts_of(file)
                lengths.add(document_lengths(starts, token_count)[1])
                yield FileDocuments(starts, token_count)

        for rows in run(sent(), self.key):
            progress.begin(rows.stats.documents)
            progress.take_share(1.0)
            yield rows.write

    def _written(self, content: Collected, files: Iterable[Write], lengths: _Lengths) -> IndexFacts:
        """Append the rows of all files.  Raises: InvalidCorpus; what the files raise."""
        each = []
        for write in files:
            each.append(write(content.append))
            del write  # with its documents, before those of the next file are read
        piece_counts = [stats.pieces for stats in each]
        row_counts = [stats.rows for stats in each]
        pieces_hash = identity.pieces_hash(
            self.key.context_length,
            self.key.long_documents,
            self.delimiter,
            lengths.document_counts,
            lengths.sha256.hexdigest(),
        )
        return IndexFacts(
            self.key,
            self.store.shape.token_counts,
            np.array(piece_counts, dtype=np.int64),
            np.array(row_counts, dtype=np.int64),
            pieces_hash,
            sum(each, DocumentStats()),
        )

    def _finished(self, content: Collected, facts: IndexFacts) -> RowIndex:
        """Complete the file, and return its rows.  Raises: InvalidCorpus."""
        path = content.complete(closing(facts, self._made_from, content.read))
        name, what = self.store.name, what_of(self.key)
        numbers: KeptNumbers
        if content.is_in_memory:
            numbers = HeldNumbers(what, name, content.in_memory())
        else:
            numbers = content.mapped(
                lambda descriptor, path: MappedNumbers(what, name, descriptor, path, FOOTER)
            )
        return RowIndex(facts, numbers, path)

    @property
    def _made_from(self) -> dict[str, Any]:
        return made_from(
            self.key,
            self.store.shape.token_counts,
            fingerprint=self.fingerprint,
            borders_fingerprint=self.borders.fingerprint,
            delimiter=self.delimiter,
        )

    def _require_small_files(self) -> None:
        """Raise InvalidCorpus if a place in a file does not fit."""
        for shard in self.store.shards:
            if shard.layout.token_count > FILE_TOKENS_MAX:
                problem = f"has {shard.layout.token_count} tokens, but {self.key.order} takes files"
                cure = f"of at most {FILE_TOKENS_MAX}; split it"
                raise InvalidCorpus(shard.path, f"{problem} {cure}")

    def _log(self, what: str, index: RowIndex, more: str = "") -> None:
        stats = index.stats
        _LOG.info(
            "%s %s dataset=%s rows=%d documents=%d one_token=%d dropped=%d truncated=%d "
            "cropped_tokens=%d file=%s%s",
            what_of(self.key),
            what,
            self.store.name,
            *(stats.rows, stats.documents, stats.single, stats.dropped, stats.truncated),
            stats.cropped,
            log_safe_name(index.path) or "none",
            more,
        )


class _Lengths:
    """The lengths of the documents of all files, as the identity of their rows covers them."""

    def __init__(self) -> None:
        """Begin before the first file."""
        self.document_counts: list[int] = []
        self.sha256 = hashlib.sha256()

    def add(self, lengths: Numbers) -> None:
        """Add those of the next file: int64[documents]."""
        self.document_counts.append(lengths.size)
        self.sha256.update(np.ascontiguousarray(lengths, NUMBER).data)


class _Progress:
    """Adds up the documents that are done, and logs them."""

    def __init__(
        self, job: RowsJob, stopped: Callable[[], bool], on_progress: Callable[[float], None]
    ) -> None:
        """Begin before the first file; the arguments are those of `RowsJob.made`."""
        self._job = job
        self._stopped = stopped
        self._on_progress = on_progress
        self._logged_at = time.monotonic()
        self._before = self._own = 0

    def begin(self, document_count: int) -> None:
        """Begin the next file.  document_count: of its documents."""
        self._before += self._own
        self._own = document_count

    def take_share(self, share: float) -> None:
        """Take the share of this file that is done.  Raises: InvalidCorpus if it has to stop."""
        job = self._job
        if self._stopped():
            problem = f"was closed while its {what_of(job.key)} were made"
            raise InvalidCorpus(job.store.shards[0].path, problem)
        done = (self._before + share * self._own) / job.borders.count
        self._on_progress(done)
        if time.monotonic() - self._logged_at >= _PROGRESS_SECONDS:
            self._logged_at = time.monotonic()
            what, name = what_of(job.key), job.store.name
            _LOG.info("making %s dataset=%s done=%.1f%%", what, name, 100 * done)
