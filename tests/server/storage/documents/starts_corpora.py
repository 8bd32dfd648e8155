"""A naive reader of document starts, and writers of corpora whose documents are known."""

from __future__ import annotations

import bisect
import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.server.conftest import options
from tests.server.storage.formats.writing import megatron_index
from tests.support import reference
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.documents import Delimiters, DocumentStarts, document_starts_of
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.store import TokenStore, open_store
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.wire.row_block import Plane

Lengths = Sequence[int]


def starts_of(lengths: Lengths) -> list[int]:
    """Where documents of these lengths begin; empty ones do not."""
    starts, end = [], 0
    for length in lengths:
        if length:
            starts.append(end)
        end += length
    return starts


def starts_by(tokens: Sequence[int], end: int | None, start: int | None) -> list[int]:
    """Where documents begin that delimiters separate."""
    return [
        place
        for place, token in enumerate(tokens)
        if place == 0
        or (end is not None and tokens[place - 1] == end)
        or (start is not None and token == start)
    ]


def naive_rows(starts: Sequence[Sequence[int]], spans: Spans) -> list[list[int]]:
    """What plane 50 says of each row."""
    rows = []
    for file, first in zip(spans.shard.tolist(), spans.token_offset.tolist(), strict=True):
        low = bisect.bisect_right(starts[file], first)
        high = bisect.bisect_left(starts[file], first + spans.row_tokens)
        rows.append([start - first for start in starts[file][low:high]])
    return rows


def rows_of(plane: Plane) -> list[list[int]]:
    """The starts in each row of a plane, as a client reads them."""
    assert plane.kind == DOCUMENT_STARTS
    numbers = plane.content.view("<u4").tolist()
    rows, place = [], 0
    for size_bytes in plane.row_lengths.tolist():
        rows.append(numbers[place : place + size_bytes // 4])
        place += size_bytes // 4
    assert place == len(numbers)
    return rows


def all_windows(counts: Sequence[int], row_tokens: int) -> Spans:
    """Every window of files with these numbers of tokens."""
    places = [
        (file, first)
        for file, count in enumerate(counts)
        for first in range(max(0, count - row_tokens + 1))
    ]
    shard, first = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return Spans.of_windows(row_tokens, shard.copy(), first.copy())


def random_windows(counts: Sequence[int], row_tokens: int, rows: int = 200) -> Spans:
    """Random windows, with the first and the last one of each file that has any."""
    random = np.random.default_rng(len(counts))
    long = [file for file, count in enumerate(counts) if count >= row_tokens]
    ends = [(file, first) for file in long for first in (0, counts[file] - row_tokens)]
    inner = [
        (file, int(random.integers(0, counts[file] - row_tokens + 1)))
        for file in random.choice(long, rows).tolist()
    ]
    shard, first = np.array(ends + inner, dtype=np.int64).T
    return Spans.of_windows(row_tokens, shard.copy(), first.copy())


def naive_fingerprint(starts: Sequence[Sequence[int]]) -> bytes:
    """That of the plane, by the second implementation."""
    entries = [np.array(one, "<i8").tobytes() for one in starts]
    return reference.plane_fingerprint(DOCUMENT_STARTS, entries)


@dataclass(frozen=True)
class Corpus:
    """Files, as a dataset, and where their documents begin."""

    paths: list[str]
    starts: list[list[int]]
    counts: list[int]
    dtype: str | None = "<u2"


def write_datatrove(folder: Path, files: Sequence[Lengths]) -> Corpus:
    """X.ds with the ends of documents in X.ds.index."""
    paths = []
    for number, lengths in enumerate(files):
        path = folder / f"{number:05}.ds"
        np.ones(sum(lengths), "<u2").tofile(path)
        np.cumsum(lengths, dtype="<u8").tofile(f"{path}.index")
        paths.append(str(path))
    return Corpus(paths, list(map(starts_of, files)), list(map(sum, files)), None)


def write_megatron(folder: Path, files: Sequence[Lengths]) -> Corpus:
    """X.bin with X.idx; each document is two sequences."""
    paths = []
    for number, lengths in enumerate(files):
        path = folder / f"{number:05}.bin"
        np.ones(sum(lengths), "<u2").tofile(path)
        parts = [part for length in lengths for part in (length // 2, length - length // 2)]
        pointers = 2 * (np.cumsum(parts) - parts)
        places = np.arange(len(lengths) + 1) * 2
        path.with_suffix(".idx").write_bytes(megatron_index(parts, pointers, places))
        paths.append(str(path))
    return Corpus(paths, list(map(starts_of, files)), list(map(sum, files)), None)


def write_olmo(folder: Path, files: Sequence[Lengths]) -> Corpus:
    """X.npy with X.csv.gz."""
    paths = []
    for number, lengths in enumerate(files):
        path = folder / f"{number:05}.npy"
        np.ones(sum(lengths), "<u2").tofile(path)
        ends = np.cumsum(lengths)
        write_lines(path, zip(ends - lengths, ends, strict=True))
        paths.append(str(path))
    return Corpus(paths, list(map(starts_of, files)), list(map(sum, files)))


def write_lines(
    path: Path, documents: Iterator[tuple[int, int]] | Sequence[tuple[int, int]]
) -> None:
    """Where documents begin and end, as OLMo has them."""
    with gzip.open(path.with_suffix(".csv.gz"), "wt", compresslevel=1) as file:
        file.writelines(f"{first},{end},id\n" for first, end in documents)


Write = Callable[[Path, Sequence[Lengths]], Corpus]
WRITERS: dict[str, Write] = {
    "datatrove": write_datatrove,
    "megatron": write_megatron,
    "olmo": write_olmo,
}


@contextmanager
def opened(corpus: Corpus, read: str | None = None) -> Iterator[TokenStore]:
    """Its store."""
    store, _ = open_store("train", corpus.paths, options(corpus.dtype), StorageOptions(read=read))
    with ExitStack() as stack:
        stack.callback(store.close)
        yield store


@contextmanager
def found_starts(
    corpus: Corpus, delimiters: Delimiters | None = None, cache_dir: Path | None = None
) -> Iterator[DocumentStarts]:
    """Where its documents begin, which has to be known at once."""
    cache = None if cache_dir is None else str(cache_dir)
    with opened(corpus) as store:
        found = document_starts_of(store, delimiters, cache)
        assert found is not None
        assert found.is_known
        yield found
        found.close()


def require_agreement(found: DocumentStarts, corpus: Corpus, spans: Spans | None = None) -> None:
    """Require that a plane says what the naive reader says."""
    assert found.fingerprint == naive_fingerprint(corpus.starts)
    assert found.count == sum(map(len, corpus.starts))
    longest = max(corpus.counts)
    for row_tokens in (2, 3, 100, 2049, longest):
        if row_tokens <= longest and spans is None:
            rows = 200 if row_tokens < 3000 else 3
            windows = random_windows(corpus.counts, row_tokens, rows)
            assert rows_of(found.read(windows)) == naive_rows(corpus.starts, windows)
    if spans is not None:
        assert rows_of(found.read(spans)) == naive_rows(corpus.starts, spans)
        assert rows_of(found.read(spans[:0])) == []
