"""Corpora of documents, their rows by the reference, and an index of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from tests.server.storage.documents.starts_corpora import Corpus, opened, write_datatrove
from tests.support import reference
from tokenfeed.sampling.document_rows import RowPieces, RowsKey
from tokenfeed.server.storage.documents import (
    Delimiters,
    DocumentStarts,
    RowIndices,
    document_starts_of,
)
from tokenfeed.server.storage.store import TokenStore

FINGERPRINT = bytes(range(32))


def packed(context_length: int) -> RowsKey:
    """Rows of packed-1."""
    return RowsKey("packed-1", context_length, "cut")


def padded(context_length: int, long_documents: str = "cut") -> RowsKey:
    """Rows of padded-1."""
    return RowsKey("padded-1", context_length, long_documents)


Row = list[list[int]]


def padded_rows(lengths: Sequence[Sequence[int]], key: RowsKey) -> list[Row]:
    """Rows of padded-1, piece by piece: [file, first token, tokens] of the one piece of each."""
    row_tokens = key.context_length + 1
    rows: list[Row] = []
    for file, documents in enumerate(lengths):
        begin = 0
        for n in documents:
            firsts = range(0, max(n - 1, 0), key.context_length)
            if n > row_tokens and key.long_documents != "cut":
                firsts = firsts[: 1 if key.long_documents == "truncate" else 0]
            rows += [[[file, begin + at, min(row_tokens, n - at)]] for at in firsts]
            begin += n
    return rows


def rows_by_reference(lengths: Sequence[Sequence[int]], key: RowsKey) -> list[Row]:
    """All rows of documents of these lengths, by a second implementation."""
    if key.order == "packed-1":
        return reference.packed_rows([list(one) for one in lengths], key.context_length)
    return padded_rows(lengths, key)


def rows_of(found: RowPieces) -> list[Row]:
    """The pieces of rows, as lists."""
    columns = np.stack([found.shard, found.token_offset, found.token_count], axis=1)
    return [part.tolist() for part in np.split(columns, found.first_piece[1:-1])]


def random_lengths(seed: int, file_count: int = 3, documents: int = 300) -> list[list[int]]:
    """Lengths of documents of files: short ones, and a few long ones."""
    random = np.random.default_rng(seed)
    return [
        np.minimum(random.geometric(0.05, documents) ** 2 // 8 + 1, 3000).tolist()
        for _ in range(file_count)
    ]


def write_documents(folder: Path, lengths: Sequence[Sequence[int]]) -> Corpus:
    """Files whose format knows their documents."""
    folder.mkdir(exist_ok=True)
    return write_datatrove(folder, lengths)


@contextmanager
def indices_of(
    corpus: Corpus,
    cache_dir: Path | None = None,
    *,
    delimiter: int | None = None,
    fingerprint: bytes = FINGERPRINT,
) -> Iterator[RowIndices]:
    """The indices of a corpus, as one server has them."""
    delimiters = Delimiters(end=delimiter)
    cache = None if cache_dir is None else str(cache_dir)
    with opened(corpus) as store, closing(known_starts(store, delimiters)) as starts:
        indices = RowIndices(store, starts, delimiter, cache, fingerprint)
        with closing(indices):
            yield indices


def known_starts(store: TokenStore, delimiters: Delimiters | None = None) -> DocumentStarts:
    """Where the documents of a store begin, which is known at once."""
    found = document_starts_of(store, delimiters)
    assert found is not None
    assert found.is_known
    return found


def kept(folder: Path) -> list[Path]:
    """The indices that lie in a folder."""
    return sorted([*folder.glob(".*-packed-1-*"), *folder.glob(".*-padded-1-*")])
