"""OLMo-core's files: named like arrays, without a header; documents in a .csv.gz beside them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import ends, read, tokens
from tokenfeed.errors import InvalidCorpus


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "part-0-00000.npy"
    np.arange(11, dtype="<u4").tofile(made)
    return made


def describe(path: Path, lines: str) -> None:
    with gzip.open(path.with_suffix(".csv.gz"), "wt") as file:
        file.write(lines)


def test_a_file_that_is_not_an_array_is_all_tokens(path: Path) -> None:
    """Its type is recorded nowhere."""
    assert read(path).format == "olmo"
    assert read(path).dtype_assumed
    assert tokens(path, read(path, "<u4")) == list(range(11))
    assert read(path, "<u4").documents is None


def test_documents_are_those_of_the_lines_beside_it(path: Path) -> None:
    describe(path, "0,4,id-1,source.gz\n4,6,id-2\n6,11\n")

    layout = read(path, "<u4")

    assert layout.documents is not None
    assert (layout.documents.count, ends(layout)) == (3, [4, 6, 11])


def test_where_documents_begin_is_read_too(path: Path) -> None:
    """Tokens between two documents belong to neither."""
    describe(path, "1,4,id-1,source.gz\n4,6,id-2\n8,9\n")

    documents = read(path, "<u4").documents

    assert documents is not None
    assert documents.pairs is not None
    assert [block.tolist() for block in documents.pairs()] == [[1, 4, 4, 6, 8, 9]]
    assert [block.tolist() for block in documents.ends()] == [[4, 6, 9]]


def test_more_documents_than_are_read_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "many.npy"
    np.zeros(40_000, "<u2").tofile(path)
    describe(path, "".join(f"{start},{start + 1}\n" for start in range(40_000)))

    assert ends(read(path)) == list(range(1, 40_001))


@pytest.mark.parametrize(
    "lines",
    [
        "0,4\n4,3\n",
        "0,12\n",
        "0\n",
        "0\n4\n",
        "a,b\n",
        "a,4\n",
        "0,-1\n",
        f"0,{10**30}\n",
        "0," + "9" * 9000,
        "\n",
        "0,0\n" * 20_000,
        "0," + " " * 5000 + "4\n",
    ],
)
def test_lines_that_do_not_fit_are_refused(path: Path, lines: str) -> None:
    """An index of another file would cut documents in two."""
    describe(path, lines)

    with pytest.raises(InvalidCorpus, match=r"part-0-00000\.csv\.gz: "):
        read(path, "<u4")


def test_no_lines_are_no_documents(path: Path) -> None:
    """A writer may leave an empty index."""
    describe(path, "")

    documents = read(path, "<u4").documents
    assert documents is not None
    assert documents.count == 0


def test_an_array_is_none_of_its_files_whatever_the_user_says(tmp_path: Path) -> None:
    """Its header would be served as tokens."""
    path = tmp_path / "array.npy"
    np.save(path, np.arange(9, dtype="<u2"))

    with pytest.raises(InvalidCorpus, match="has NumPy's header, so it is not OLMo's"):
        read(path, form="olmo")


@pytest.mark.timeout(60)
def test_a_pipe_for_an_index_is_refused(path: Path) -> None:
    """It has no writer: the server would wait for ever."""
    os.mkfifo(path.with_suffix(".csv.gz"))

    with pytest.raises(InvalidCorpus, match=r"part-0-00000\.csv\.gz: is not a regular file"):
        read(path, "<u4")


def test_truncated_lines_are_refused(path: Path) -> None:
    describe(path, "0,4\n" * 1000)
    beside = path.with_suffix(".csv.gz")
    beside.write_bytes(beside.read_bytes()[:-9])

    with pytest.raises(InvalidCorpus, match=r"part-0-00000\.csv\.gz: "):
        read(path, "<u4")
