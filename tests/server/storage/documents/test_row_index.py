"""Row -> pieces, and tokens -> rows, against the reference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from tests.server.storage.documents.rows_corpora import (
    indices_of,
    packed,
    padded,
    random_lengths,
    rows_by_reference,
    rows_of,
    write_documents,
)
from tests.server.storage.documents.rows_corpora import kept as kept_files
from tests.server.storage.documents.starts_corpora import Corpus, starts_of
from tests.support import reference
from tests.support.waiting import eventually
from tokenfeed.errors import CorpusChanged, Unreadable
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.storage.documents import (
    RowIndex,
    RowIndices,
    index_file,
    row_index,
    row_indices,
)
from tokenfeed.server.storage.documents.numbers import HeldNumbers, MappedNumbers
from tokenfeed.server.storage.documents.rows_builder import FileDocuments, rows_of_documents

KEYS = [
    packed(16),
    packed(100),
    padded(16),
    padded(100, "drop"),
    padded(100, "truncate"),
    packed(5000),
]
LENGTHS = random_lengths(5)


@pytest.fixture(params=["in memory", "mapped"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the numbers of an index are."""
    if request.param == "mapped":
        monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    return str(request.param)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_documents(tmp_path / "corpus", LENGTHS)


@pytest.fixture
def indices(corpus: Corpus, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RowIndices]:
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 60.0)
    with indices_of(corpus) as found:
        yield found


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_an_index_has_the_rows_of_the_reference(
    indices: RowIndices, key: RowsKey, place: str
) -> None:
    """Another row would be another stream."""
    index = indices.get(key)
    expected = rows_by_reference(LENGTHS, key)

    kind = MappedNumbers if place == "mapped" else HeldNumbers
    assert isinstance(index._numbers, kind)
    assert index.row_count == len(expected)
    assert rows_of(index.pieces(np.arange(index.row_count))) == expected
    some = np.random.default_rng(1).integers(0, index.row_count, 50)
    assert rows_of(index.pieces(some)) == [expected[row] for row in some.tolist()]
    assert index.row_pieces_max == max(map(len, expected))
    assert index.stats.rows == len(expected)
    assert index.stats.pieces == sum(map(len, expected))
    assert index.stats.targets == sum(n - 1 for row in expected for _, _, n in row)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_no_rows_have_no_pieces(indices: RowIndices, key: RowsKey) -> None:
    """A plan of no samples is one too."""
    found = indices.get(key).pieces(np.empty(0, dtype=np.int64))

    assert found.first_piece.tolist() == [0]
    assert [part.size for part in found] == [1, 0, 0, 0]
    assert all(part.dtype == np.int64 for part in found)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_tokens_lead_to_the_rows_that_have_them(
    indices: RowIndices, key: RowsKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`find` asks so, of a document or of a part of one; parts of a scan are no ends of rows."""
    monkeypatch.setattr(row_index, "_NUMBERS_AT_ONCE", 7)
    index = indices.get(key)
    rows = rows_by_reference(LENGTHS, key)
    random = np.random.default_rng(2)
    for _ in range(40):
        file = int(random.integers(len(LENGTHS)))
        count = 2 * int(random.integers(1, 4))
        bounds = np.sort(random.choice(sum(LENGTHS[file]), count, replace=False))
        firsts, ends = bounds[::2], np.minimum(bounds[1::2], bounds[::2] + random.integers(1, 400))
        expected = [
            number
            for number, row in enumerate(rows)
            if any(
                shard == file and at < end and at + n > first
                for shard, at, n in row
                for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
            )
        ]
        found = index.rows_of(file, firsts, ends, 10**9)
        assert isinstance(found, np.ndarray)
        assert found.tolist() == expected
        every = index.rows_of(file, firsts, ends, len(expected) - 1)
        assert isinstance(every, range)
        assert [rows[number][0][0] for number in every] == [file] * len(every)
        assert set(expected) <= set(every)


lengths = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=40), min_size=1, max_size=4)


@given(lengths, st.integers(1, 70), st.sampled_from(["packed", "cut", "drop", "truncate"]))
@example_settings(max_examples=60)
def test_any_documents_in_any_files_have_the_rows_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    context_length: int,
    kind: str,
) -> None:
    """Also files without a row, and rows as long as a file."""
    key = packed(context_length) if kind == "packed" else padded(context_length, kind)
    corpus = write_documents(tmp_path_factory.mktemp("corpus"), documents)
    expected = rows_by_reference(documents, key)
    with pytest.MonkeyPatch.context() as patch:
        for memory_bytes in (0, 1 << 20):
            patch.setattr(index_file, "MEMORY_BYTES_MAX", memory_bytes)
            with indices_of(corpus) as indices:
                index = indices.make_now(key)
                assert index.row_count == len(expected)
                if expected:
                    assert rows_of(index.pieces(np.arange(index.row_count))) == expected
            for path in kept_files(Path(corpus.paths[0]).parent):
                path.unlink()


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_hash_of_the_pieces_is_that_of_the_protocol(indices: RowIndices, key: RowsKey) -> None:
    """It is part of the identity of a stream, whatever made the index."""
    expected = reference.pieces_hash(key.context_length, key.long_documents, None, LENGTHS)

    assert indices.get(key).pieces_hash == expected


def test_the_rows_of_a_file_are_bytes_that_are_published_here() -> None:
    """The example of docs/protocol.md: an index that was made by one version is read by another."""
    starts = np.array(starts_of([9, 3, 1, 4, 2]))
    made = rows_of_documents(FileDocuments(starts, 19), packed(4))

    numbers = np.frombuffer(made.numbers, "<u8").tolist()
    pieces = [(0, 5), (4, 5), (13, 4), (9, 3), (17, 2)]
    assert numbers == [at * 2**24 + n for at, n in pieces] + [0, 1, 2, 3, 5]
    assert rows_of_documents(FileDocuments(starts, 19), padded(4)).numbers == b"".join(
        (at * 2**24 + n).to_bytes(8, "little")
        for at, n in [(0, 5), (4, 5), (9, 3), (13, 4), (17, 2)]
    )
    assert reference.packed_rows([[9, 3, 1, 4, 2]], 4)[3] == [[0, 9, 3], [0, 17, 2]]


def test_a_place_near_the_greatest_one_is_kept_exactly() -> None:
    """The highest bit of a number is a part of it."""
    last = (1 << 40) - 2
    packed_bytes = row_index.packed_numbers(np.array([last]), np.array([2]))

    offset, count = row_index._unpacked(np.frombuffer(packed_bytes, "<i8"))
    assert (offset.tolist(), count.tolist()) == ([last], [2])
    assert offset.dtype == count.dtype == np.int64


@pytest.fixture
def mapped(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[RowIndex]:
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    with indices_of(corpus) as indices:
        # A busy machine may take longer than a call waits.
        assert eventually(lambda: is_made(indices, packed(100)))
        yield indices.get(packed(100))


def is_made(indices: RowIndices, key: RowsKey) -> bool:
    try:
        indices.get(key)
    except Unreadable:
        return False
    return True


def file_of(corpus: Corpus) -> Path:
    (path,) = kept_files(Path(corpus.paths[0]).parent)
    return path


@pytest.mark.parametrize("size", [0, 1, 8, 4095, 4096, -1])
def test_an_index_that_is_truncated_while_it_is_served_fails_for_good(
    mapped: RowIndex, corpus: Corpus, size: int
) -> None:
    """Zeros in place of the rest would be other rows; a read in user space would be SIGBUS."""
    path = file_of(corpus)
    os.truncate(path, size % path.stat().st_size)

    for _ in range(2):
        with pytest.raises(CorpusChanged, match="'train' has rows of packed-1 for context length"):
            mapped.pieces(np.arange(mapped.row_count))
    with pytest.raises(CorpusChanged):
        mapped.rows_of(0, np.array([0]), np.array([100]), 1000)


WRONG = {
    "a piece that is too long": (0, 101 + 1),
    "a piece of one token": (0, 1),
    "a piece of nothing": (0, 0),
    "a piece behind its file": (0, ((sum(LENGTHS[0]) - 1) << 24) + 2),
    "a far piece": (0, -1),
}


@pytest.mark.parametrize(("number", "value"), WRONG.values(), ids=WRONG)
def test_a_piece_that_is_damaged_while_it_is_served_is_found(
    mapped: RowIndex, corpus: Corpus, number: int, value: int
) -> None:
    """What cannot be a piece is never read as one."""
    overwrite(file_of(corpus), number, value)

    with pytest.raises(CorpusChanged):
        mapped.pieces(np.array([0]))


@pytest.mark.parametrize("value", [-1, 0, 5, 1 << 40])
def test_a_row_start_that_is_damaged_while_it_is_served_is_found(
    mapped: RowIndex, corpus: Corpus, value: int
) -> None:
    """Neither a row without pieces nor one of millions."""
    pieces = int(mapped._facts.piece_counts[0])
    assert rows_of(mapped.pieces(np.array([5])))
    overwrite(file_of(corpus), pieces + 6, value)

    with pytest.raises(CorpusChanged):
        mapped.pieces(np.array([5]))


def test_another_possible_piece_that_is_written_while_it_is_served_is_found_by_time(
    mapped: RowIndex, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with it but that it is not the document's: it would be learned."""
    path = file_of(corpus)
    right = int(np.fromfile(path, "<i8", 1)[0])
    overwrite(path, 0, right + (1 << 24))
    os.utime(path, (1, 1))  # not in the tick in which it was made
    monkeypatch.setattr("tokenfeed.server.storage.documents.numbers._POLL_SECONDS", 0.0)

    for _ in range(2):
        with pytest.raises(CorpusChanged):
            mapped.pieces(np.array([0]))


def overwrite(path: Path, number: int, value: int) -> None:
    """Write a number into a file in place."""
    with path.open("r+b") as file:
        file.seek(8 * number)
        file.write(np.array([value], "<i8").tobytes())


def test_a_closed_index_is_not_read(mapped: RowIndex) -> None:
    """Its addresses may be those of other data."""
    mapped.close()
    mapped.close()
    with pytest.raises(CorpusChanged):
        mapped.pieces(np.array([0]))


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_an_index_that_was_removed_or_replaced_is_still_read(
    mapped: RowIndex, corpus: Corpus, change: str
) -> None:
    """Another server may have made it again."""
    path = file_of(corpus)
    if change == "removed":
        path.unlink()
    else:
        other = path.with_name("other")
        other.write_bytes(b"none")
        other.replace(path)

    rows = np.arange(mapped.row_count)
    assert rows_of(mapped.pieces(rows)) == rows_by_reference(LENGTHS, packed(100))
