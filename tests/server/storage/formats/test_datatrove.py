"""datatrove's .ds, written by datatrove, with and without the files beside it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import ends, read, tokens
from tokenfeed.errors import InvalidCorpus

DOCUMENTS = [[5, 6, 7, 50256], [8, 50256], [9, 10, 11, 12, 50256]]


@pytest.fixture
def write(tmp_path: Path):
    tokenizer = pytest.importorskip("datatrove.pipeline.tokens.tokenizer", exc_type=ImportError)

    def start(token_size: int = 2, *, index: bool = True, metadata: bool = True) -> Path:
        file = tokenizer.TokenizedFile(
            str(tmp_path),
            "000_corpus.ds",
            save_index=index,
            tokenizer_name_or_path="gpt2",
            save_final_metadata=metadata,
            token_size=token_size,
        )
        for document in DOCUMENTS:
            file.write(document, None)
        file.close()
        return tmp_path / "000_corpus.ds"

    return start


FLAT = [token for document in DOCUMENTS for token in document]


@pytest.mark.parametrize("token_size", [2, 4])
def test_the_metadata_says_the_type_and_the_index_the_documents(write, token_size: int) -> None:
    path = write(token_size)

    layout = read(path)

    assert (layout.format, layout.dtype.itemsize) == ("datatrove", token_size)
    assert not layout.dtype_assumed
    assert tokens(path, layout) == FLAT
    assert ends(layout) == [4, 6, 11]


@pytest.mark.parametrize("token_size", [2, 4])
def test_without_metadata_the_type_follows_from_where_the_last_document_ends(
    write, token_size: int
) -> None:
    path = write(token_size, metadata=False)

    assert not read(path).dtype_assumed
    assert tokens(path, read(path)) == FLAT


def test_with_nothing_beside_it_the_type_is_assumed_or_what_the_user_says(write) -> None:
    path = write(4, metadata=False, index=False)

    assert read(path).format == "datatrove"
    assert read(path).dtype_assumed
    assert tokens(path, read(path, "<u4")) == FLAT


@pytest.mark.parametrize("token_size", [2, 4])
def test_metadata_that_says_only_how_many_gives_the_type_too(write, token_size: int) -> None:
    """As older versions wrote it."""
    path = write(token_size, index=False)
    Path(f"{path}.metadata").write_text("gpt2\n11\n11 T")

    assert not read(path).dtype_assumed
    assert tokens(path, read(path)) == FLAT


def test_a_name_is_believed_only_where_the_content_says_nothing(write) -> None:
    """An array in a file named *.ds is an array."""
    path = write(metadata=False, index=False)
    with path.open("wb") as file:
        np.save(file, np.arange(50, dtype="<u2"))

    assert read(path).format == "npy"


def test_without_an_index_nothing_is_known_of_documents(write) -> None:
    path = write(index=False)

    assert read(path).documents is None
    assert tokens(path, read(path)) == FLAT


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (struct.pack("<3Q", 4, 6, 12), "at most 11"),
        (struct.pack("<3Q", 4, 3, 11), "document ends have to ascend"),
        (struct.pack("<3Q", 4, 6, 2**63 + 11), "document ends have to ascend"),
        (struct.pack("<2Q", 4, 6), "the last document ends at 6, not at 11"),
        (struct.pack("<2Q", 4, 6)[:-1], r"not a multiple of 8 \(uint64\)"),
        (b"", "the last document ends at 0"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(write, index: bytes, problem: str) -> None:
    path = write()
    Path(f"{path}.index").write_bytes(index)

    with pytest.raises(InvalidCorpus, match=rf"\.ds\.index: .*{problem}"):
        read(path)


@pytest.mark.parametrize(
    "metadata",
    ["", "gpt2|2", "gpt2|3\n11\n11", "gpt2|2\nmany", "gpt2|2\n12", "gpt2|x\n11", "\0\xff"],
)
def test_metadata_that_does_not_fit_is_refused(write, metadata: str) -> None:
    path = write()
    Path(f"{path}.metadata").write_bytes(metadata.encode("latin-1"))

    with pytest.raises(InvalidCorpus, match=r"\.ds\.metadata: "):
        read(path)


def test_truncated_tokens_are_noticed_by_their_number(write) -> None:
    path = write()
    path.write_bytes(path.read_bytes()[:-2])

    with pytest.raises(InvalidCorpus, match=r"records 11 tokens, but 000_corpus\.ds has 10"):
        read(path)
    assert np.dtype("<u2") == read(path, "<u2", form="raw").dtype
