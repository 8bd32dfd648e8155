"""Makes the rows of a dataset for an order over documents, file by file.

The memory is bounded by the documents of the file of tokens with most of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus, InvalidRequest
from tokenfeed.sampling.document_rows import DocumentStats, FilePieces, RowsKey, document_lengths
from tokenfeed.sampling.orders import packed_v1, padded_v1
from tokenfeed.stream import identity

from ...runtime.exceptions import log_safe_name
from ...runtime.process.memory_limit import available_bytes
from ...runtime.threads.executors import Executor
from ..store import TokenStore
from .document_starts import DocumentStarts
from .index_builder import Content, Description, IndexBuilder, Progress
from .index_file import DamagedIndex
from .numbers import NUMBER, Numbers
from .row_index import FILE_TOKENS_MAX, IndexFacts, RowIndex, packed_numbers

_LOG = logging.getLogger("tokenfeed.server")

_ALONE_DOCUMENTS_MAX = 1 << 17
"""Rows of fewer documents are made in a tenth of a second, sooner than the lock of those who share
them is found."""
# packed-1 of a file took 42 to 51 bytes a document of web or chat lengths with T from 2048 on, 273
# with T = 64, and 809 of books with T = 2048, which have 16 and 48 rows each; padded-1 16 to 27.
# tests/server/storage/documents/test_rows_builder.py holds it; 2026-11.
_DOCUMENT_BYTES = {packed_v1.NAME: 48, padded_v1.NAME: 20}
_PIECE_BYTES = {packed_v1.NAME: 18, padded_v1.NAME: 1}
"""Memory that a document takes while the rows of its file are made, and each T tokens more."""
_SENT_COPIES = 2.6
"""Of the numbers of a file, when another process sends them: 2.3 to 2.6."""

Append = Callable[[bytes], None]
"""Takes the next bytes of an index."""
OnShare = Callable[[float], None]
"""Takes the share of a file that is done, now and then; may raise."""
Write = Callable[[Append, OnShare], DocumentStats]
"""Writes the rows of a file, and returns what became of its documents."""


def what_of(key: RowsKey) -> str:
    """Return what an index holds, for messages."""
    long = "" if key.long_documents == "cut" else f", long documents {key.long_documents},"
    return f"rows of {key.order}{long} for context length {key.context_length}"


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory the making of rows may take.

    share: of the memory that is available here, for `workers` files at once.  cure: for rows that
    take more.
    """

    share: float
    workers: int
    cure: str


class RowsBuilder(IndexBuilder[IndexFacts, RowIndex]):
    """The rows of a dataset, to be found or made."""

    others = "from other documents, or for other rows"

    def __init__(
        self,
        store: TokenStore,
        starts: DocumentStarts,
        delimiter: int | None,
        cache_dir: str | None,
        fingerprint: bytes,
        key: RowsKey,
        memory: Memory,
        run: Executor[FileDocuments, RowsKey, FileRows] | None = None,
    ) -> None:
        """Begin with what is known before they are made.

        starts: of the documents, which are known.  delimiter: the token that ends a document; None
        if the format defines it.  cache_dir: folder for the file of the index; None: beside the
        tokens.  fingerprint: of the tokens.  run: makes the rows of files, if other processes do.
        """
        self.starts = starts
        self.key = key
        self.what = what_of(key)
        self.work = f"making {self.what}"
        self._delimiter = delimiter
        self._memory = memory
        self._run = run
        has_file = len(store.files.facts) == len(store.shards)
        # Servers with other delimiters keep other files.
        suffix = f".tokenfeed-{key.order}-{key.long_documents}-{key.context_length}"
        suffix += f"-{starts.fingerprint.hex()[:8]}"
        made_from = {
            "order": key.order,
            "context_length": key.context_length,
            "long_documents": key.long_documents,
            "document_end_token": delimiter,
            "tokens": fingerprint.hex(),
            "document_starts": starts.fingerprint.hex(),
            "token_counts": store.shape.token_counts.tolist(),
        }
        super().__init__(store, suffix if has_file else "", cache_dir, made_from)

    @property
    def takes_long(self) -> bool:
        """Whether there are many documents."""
        return self.starts.count >= _ALONE_DOCUMENTS_MAX

    @property
    def memory_bytes(self) -> int:
        """How much memory the making takes, about: that of one file in each worker."""
        documents = self.starts.counts
        pieces = self.store.shape.token_counts // self.key.context_length
        of_document, of_piece = _DOCUMENT_BYTES[self.key.order], _PIECE_BYTES[self.key.order]
        of_files = of_document * documents + of_piece * pieces
        if self._run is not None:
            # Another process holds all numbers of its file, which it then sends.
            numbers = documents + pieces * (2 if self.key.order == packed_v1.NAME else 1)
            size_bytes = NUMBER.itemsize * numbers
            of_files = np.maximum(of_files + size_bytes, (_SENT_COPIES * size_bytes).astype(int))
        of_files.sort()
        return int(of_files[max(0, of_files.size - self._memory.workers) :].sum())

    def require_memory(self) -> None:
        """Raise InvalidRequest if rows do not fit into memory while they are made: this process
        would be killed, and have done nothing but that once it is started again.
        """
        try:
            available = int(self._memory.share * available_bytes())
        except OSError:
            return
        if self.memory_bytes > available:
            problem = (
                f"{self.store.name!r} has no {self.what} yet, and making them takes "
                f"{self.memory_bytes / 1e9:.1f} GB of memory, of which {available / 1e9:.1f} GB "
                "are for that here"
            )
            raise InvalidRequest("order", f"{problem}; {self._memory.cure}")

    def _write(self, append: Append, progress: Progress) -> tuple[Description, Numbers]:
        """Append the rows of all files.  Raises: InvalidCorpus, InvalidRequest; what the documents
        raise.
        """
        self.require_memory()
        self._require_small_files()
        lengths, each = _Lengths(), list[DocumentStats]()
        before = 0

        def on_share(share: float) -> None:
            if progress.stopped():
                problem = f"was closed while its {self.what} were made"
                raise InvalidCorpus(self.store.shards[0].path, problem)
            progress.take((before + share * lengths.document_counts[len(each)]) / self.starts.count)

        for write in self._files(lengths) if self._run is None else self._files_by_run(lengths):
            stats = write(append, on_share)
            del write  # with its documents, before those of the next file are read
            each.append(stats)
            before += stats.documents
        pieces_hash = identity.pieces_hash(
            self.key.context_length,
            self.key.long_documents,
            self._delimiter,
            lengths.document_counts,
            lengths.sha256.hexdigest(),
        )
        total = asdict(sum(each, DocumentStats()))
        return {
            "pieces": [int(stats.pieces) for stats in each],
            "rows": [int(stats.rows) for stats in each],
            "pieces_hash": pieces_hash.hex(),
            "stats": {name: int(count) for name, count in total.items()},
        }, np.empty(0, dtype=np.int64)

    def _files(self, lengths: _Lengths) -> Iterator[Write]:
        """Yield what writes the rows of each file, in order."""
        for file, token_count in enumerate(self.store.shape.token_counts.tolist()):
            pieces = FilePieces.of(self.starts.starts_of(file), token_count, self.key)
            lengths.add(pieces.lengths)
            yield partial(write_rows, pieces)
            del pieces

    def _files_by_run(self, lengths: _Lengths) -> Iterator[Write]:
        """Like `_files`; other processes make the rows."""
        assert self._run is not None

        def sent() -> Iterator[FileDocuments]:
            for file, token_count in enumerate(self.store.shape.token_counts.tolist()):
                starts = self.starts.starts_of(file)
                lengths.add(document_lengths(starts, token_count))
                yield FileDocuments(starts, token_count)

        for rows in self._run(sent(), self.key, None):
            yield rows.write

    def _facts_of(self, description: Description, number_count: int) -> IndexFacts:
        facts = IndexFacts(
            self.key,
            self.store.shape.token_counts,
            np.array(description["pieces"], dtype=np.int64),
            np.array(description["rows"], dtype=np.int64),
            bytes.fromhex(description["pieces_hash"]),
            DocumentStats(**description["stats"]),
        )
        pieces, rows = facts.piece_counts, facts.row_counts
        if not (
            pieces.shape == rows.shape == facts.token_counts.shape
            and (rows >= 0).all()
            and (pieces >= rows).all()
            and (pieces <= facts.token_counts).all()
            and (facts.has_row_starts or (pieces == rows).all())
            and (facts.stats.pieces, facts.stats.rows) == (int(pieces.sum()), int(rows.sum()))
            and _are_possible(facts.stats, facts)
            and len(facts.pieces_hash) == 32
            and int(facts.first_numbers[-1]) == number_count
        ):
            raise DamagedIndex("is damaged")
        return facts

    def _index_of(self, facts: IndexFacts, content: Content) -> RowIndex:
        return RowIndex(facts, content.numbers, content.path)

    def _require_small_files(self) -> None:
        """Raise InvalidCorpus if a place in a file does not fit."""
        for shard in self.store.shards:
            if shard.layout.token_count > FILE_TOKENS_MAX:
                problem = f"has {shard.layout.token_count} tokens, but {self.key.order} takes files"
                cure = f"of at most {FILE_TOKENS_MAX}; split it"
                raise InvalidCorpus(shard.path, f"{problem} {cure}")

    def _log(self, event: str, index: RowIndex, path: str, seconds: float = 0.0) -> None:
        stats = index.stats
        _LOG.info(
            "%s %s dataset=%s rows=%d documents=%d one_token=%d dropped=%d truncated=%d "
            "cropped_tokens=%d file=%s%s",
            self.what,
            event,
            self.store.name,
            *(stats.rows, stats.documents, stats.single, stats.dropped, stats.truncated),
            stats.cropped,
            log_safe_name(path) or "none",
            f" seconds={seconds:.1f}" if event == "made" else "",
        )


def _are_possible(stats: DocumentStats, facts: IndexFacts) -> bool:
    """Return whether figures can be those of documents.  Their pieces and rows are right."""
    row_tokens = facts.key.context_length + 1
    tokens = int(facts.token_counts.sum())
    pieces_max = row_tokens // 2 if facts.has_row_starts else 1
    return (
        all(type(count) is int and count >= 0 for count in asdict(stats).values())
        and stats.single + stats.dropped + stats.truncated <= stats.documents <= tokens
        and stats.cropped <= tokens
        # Each piece has a token that is no target, and at least one that is.
        and stats.pieces <= stats.targets <= stats.rows * row_tokens - stats.pieces
        and min(stats.rows, 1) <= stats.row_pieces_max <= min(stats.pieces, pieces_max)
        and stats.pieces <= stats.rows * stats.row_pieces_max
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


def write_rows(
    pieces: FilePieces, append: Append, on_share: OnShare = lambda share: None
) -> DocumentStats:
    """Write the rows of a file, in parts; the numbers are those of row_index.py.

    Returns: what became of its documents.
    """
    on_share(0.0)
    stats = pieces.stats()
    done = row_pieces_max = 0
    row_starts = [np.zeros(1, dtype=NUMBER)]
    row_count = 0
    for part in pieces.rows():
        append(packed_numbers(part.token_offset, part.token_count))
        if pieces.key.order == packed_v1.NAME:
            row_starts.append(part.first_piece[1:].astype(NUMBER) + done)
        done += part.token_count.size
        row_count += part.first_piece.size - 1
        row_pieces_max = max(row_pieces_max, int(np.diff(part.first_piece).max(initial=0)))
        on_share(done / max(1, stats.pieces))
    if pieces.key.order == packed_v1.NAME:
        for starts in row_starts:
            append(starts.tobytes())
    return replace(stats, rows=row_count, row_pieces_max=row_pieces_max)


class FileRows(NamedTuple):
    """The rows of a file, from another process.  numbers: as in the index."""

    numbers: bytes
    stats: DocumentStats

    def write(self, append: Append, on_share: OnShare) -> DocumentStats:
        """Like `write_rows`."""
        append(self.numbers)
        on_share(1.0)
        return self.stats


@dataclass(frozen=True, slots=True)
class FileDocuments:
    """Where the documents of a file begin, for the process that makes its rows; the fields are the
    arguments of FilePieces.of.
    """

    starts: Numbers
    token_count: int

    @property
    def size_bytes(self) -> int:
        """How much memory they take."""
        return self.starts.nbytes


def rows_of_documents(documents: FileDocuments, key: RowsKey) -> FileRows:
    """Return the rows of a file that was sent to this process."""
    numbers: list[bytes] = []
    pieces = FilePieces.of(documents.starts, documents.token_count, key)
    stats = write_rows(pieces, numbers.append)
    return FileRows(b"".join(numbers), stats)
