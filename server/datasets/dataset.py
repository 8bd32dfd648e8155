"""A named dataset, which the service serves; opening.py opens it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tokenfeed.errors import CorpusChanged, InvalidRequest, Unreadable
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.plan import refusal_of_rows, row_count, rows_key
from tokenfeed.stream.stage import Corpus, Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads.poll_rate import pause_seconds
from ..runtime.threads.poller import Poller
from ..storage.bytes import Submit, run_inline
from ..storage.documents import DocumentStarts, RowIndex, RowIndices
from ..storage.store import TokenStore
from .content import Content, fingerprint_of
from .planes.loss_masks import LossMask
from .planes.plane_files import PlaneFiles
from .redactions.list_file import RedactionLists
from .redactions.opening import original_digest, read_as_erased
from .redactions.replaced_shards import ReplacedShards

_LOG = logging.getLogger("tokenfeed.server")


@dataclass(eq=False, slots=True)
class Dataset:
    """What is served under one name.

    fingerprint: 32 bytes.  digest: of all content, 32 bytes; b"" until it is known, which may
    be while it is served.  why_store: the reason for its kind of store.  plane_files: its
    planes that have files of their own.  document_starts: None if it has none.  rows: of its
    documents; None before it is opened.  redactions: the lists of its redacted tokens, also if
    there are none yet.  replaced_shards: its files without erased tokens. Both are None for a
    store without files.
    """

    name: str
    store: TokenStore
    fingerprint: bytes
    digest: bytes
    why_store: str = "unknown"
    plane_files: list[PlaneFiles] = field(default_factory=list)
    document_starts: DocumentStarts | None = None
    rows: RowIndices | None = None
    redactions: RedactionLists | None = None
    replaced_shards: ReplacedShards | None = None

    @property
    def loss_mask(self) -> LossMask | None:
        """Its loss mask; None if it has none."""
        return next((each for each in self.plane_files if isinstance(each, LossMask)), None)

    def add_plane_files(self, plane: PlaneFiles) -> None:
        """Deliver a plane with its rows; only before it is served."""
        self.plane_files.append(plane)
        self.store.add_plane(plane)

    @property
    def documents(self) -> pb.Documents | None:
        """How many documents are known, and of how many files; None if those of no file are."""
        known = [shard.layout.documents for shard in self.store.shards]
        counts = [documents.count for documents in known if documents is not None]
        if not counts and self.document_starts is not None and self.document_starts.count:
            return pb.Documents(count=self.document_starts.count, file_count=len(known))
        return pb.Documents(count=sum(counts), file_count=len(counts)) if counts else None

    def start_search(self) -> None:
        """Start to search for documents, if that takes long and is not done."""
        if self.document_starts is not None:
            self.document_starts.start()

    def stop_search(self) -> None:
        """End a search, or the making of rows, that is not done; a process that exits without this
        may leave its file.
        """
        if self.document_starts is not None:
            self.document_starts.stop()
        if self.rows is not None:
            self.rows.stop()

    def search_now(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Search in this thread instead.  stopped: whether to stop, which raises InvalidCorpus.

        Raises: InvalidCorpus, CorpusChanged, Unreadable.
        """
        if self.document_starts is not None:
            self.document_starts.search_now(stopped)

    @property
    def search_progress(self) -> float | None:
        """The share of a search for documents that is done, in [0, 1); None if there is none."""
        if self.document_starts is None or self.document_starts.is_known:
            return None
        return self.document_starts.progress

    def require_searched(self) -> None:
        """Raise Unreadable, with the progress or the failure, unless a search has ended."""
        if self.document_starts is not None:
            self.document_starts.require_known()

    def describe(self, context_length: int | None = None) -> pb.Dataset:
        """Return its description.  context_length: T of the rows to count; None counts none."""
        shape = self.store.shape
        described = pb.Dataset(
            name=self.name,
            dtype=self.store.stored.name,
            token_bytes=self.store.dtype.itemsize,
            token_count=shape.token_count,
            file_count=shape.token_counts.size,
            longest_file_tokens=shape.longest_file_tokens,
            fingerprint=self.fingerprint,
            digest=self.digest,
            row_tokens=shape.row_tokens or 0,
            documents=self.documents,
            planes=[
                pb.DatasetPlane(kind=kind, fingerprint=fingerprint)
                for kind, fingerprint in sorted(self.store.planes.items())
            ],
        )
        if context_length is not None:
            described.rows.extend(
                pb.OrderRows(order=name, rows=row_count(order, shape, context_length))
                for name, order in orders.OF_WINDOWS.items()
            )
        if self.redactions is not None:
            described.redaction_lists.extend(self.redactions.hashes)
        if self.replaced_shards is not None:
            described.erased_list = self.replaced_shards.erased_list()
        return described

    def document_rows(self, key: RowsKey) -> pb.OrderRows:
        """Return the rows of an order over documents, or the progress while they are being made,
        which this begins.  Raises: InvalidRequest; Unreadable if they cannot be made.
        """
        found: RowIndex | float | None
        try:
            found = self._indices(key).get(key, is_read=False)
        except Unreadable:
            found = self._indices(key).find(key)
            if found is None:
                raise
        if isinstance(found, float):
            return pb.OrderRows(order=key.order, progress=found)
        return _described_rows(key, found)

    def document_rows_now(self, key: RowsKey, stopped: Callable[[], bool]) -> pb.OrderRows:
        """Return the rows of an order over documents, made in this thread if there are none and no
        other process of this machine makes them.

        stopped: whether to stop, which raises InvalidCorpus.  Raises: TokenfeedError.
        """
        return _described_rows(key, self._indices(key).make_now(key, stopped, share=True))

    def _indices(self, key: RowsKey) -> RowIndices:
        if self.rows is None:
            problem = f"{key.order} needs to know where documents begin"
            if self.store.shape.row_tokens is not None:
                problem = refusal_of_rows(key.order)
            raise InvalidRequest("order", problem)
        return self.rows

    @property
    def file_count(self) -> int:
        """How many files of tokens to poll."""
        return len(self.store.shards) if self.store.files.may_change else 0

    def poll_file(
        self,
        shard: int,
        submit: Submit = run_inline,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check one of its files for changes.

        submit: runs a function that rereads the files, until stopped() is true.
        """
        self.store.files.poll_file(shard, partial(self._same_content, stopped), submit)
        if self.replaced_shards is not None:
            self.replaced_shards.check_served(self.store, shard)

    def _same_content(self, stopped: Callable[[], bool]) -> bool | None:
        """Return whether the content that the fingerprint covers is unchanged; None if it cannot be
        read now.
        """
        expected = b""
        while True:
            before = expected
            listed = None if self.redactions is None else self.redactions.content_now()
            erasure = None if listed is None else listed.erasure
            expected = erasure.fingerprint if erasure else self.fingerprint
            if expected == before:
                return False  # no erasure has begun meanwhile
            read = read_as_erased(self.store, self.store.files.read_served, listed)
            blocks = []
            try:
                for block in Content(self.store, read).hashed():
                    if stopped():
                        return True  # nothing is served or read any more
                    blocks.append(block)
            except CorpusChanged:
                return False
            except Unreadable:
                return None
            if fingerprint_of(self.store, blocks) == expected:
                return True

    def original_digest(self, found: bytes) -> bytes:
        """Return the digest before any erasure, of files that have a digest now; b"" if it is not
        known.
        """
        content = None if self.redactions is None else self.redactions.content_now()
        return original_digest(content, found)

    def close(self) -> None:
        """Close its files."""
        if self.rows is not None:
            self.rows.close()
        self.store.close()


def corpora_of(stream: Stream, datasets: Sequence[Dataset]) -> tuple[Corpus, ...]:
    """Return what an identity covers of the dataset of each source of a stage.

    Raises: InvalidRequest; Unreadable while rows of documents are being made.
    """

    def corpus_of(source: Source, dataset: Dataset) -> Corpus:
        if not source.reads_documents:
            return Corpus(dataset.fingerprint)
        rows = dataset.store.shape.document_rows(rows_key(stream, source))
        return Corpus(dataset.fingerprint, ((stream.context_length, rows.pieces_hash),))

    return tuple(map(corpus_of, stream.sources, datasets))


def _described_rows(key: RowsKey, index: RowIndex) -> pb.OrderRows:
    stats = index.stats
    return pb.OrderRows(
        order=key.order,
        rows=index.row_count,
        pieces_hash=index.pieces_hash,
        row_pieces_max=index.row_pieces_max,
        target_count=stats.targets,
        documents=stats.documents,
        one_token_documents=stats.single,
        dropped_documents=stats.dropped,
        truncated_documents=stats.truncated,
        cropped_tokens=stats.cropped,
    )


def start_polling(
    datasets: Sequence[Dataset],
    submit: Submit = run_inline,
    stopped: Callable[[], bool] = lambda: False,
) -> Poller:
    """Start to poll the files of datasets, one after the other, in an endless cycle; the arguments
    are those of `Dataset.poll_file`.
    """
    polled: list[Dataset | PlaneFiles] = []
    for dataset in datasets:
        polled += [dataset, *dataset.plane_files]
    each = [(files, index) for files in polled for index in range(files.file_count)]
    turns = itertools.cycle(each)

    def poll() -> None:
        files, index = next(turns)
        files.poll_file(index, submit, stopped)

    names = ",".join(dataset.name for dataset in datasets)
    return Poller({f"files:{names}": poll} if each else {}, pause_seconds(max(1, len(each))))
