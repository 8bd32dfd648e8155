"""Megatron's .bin and .idx, written from the published description of the index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import ends, read, tokens
from tests.server.storage.formats.writing import megatron_index
from tokenfeed.errors import InvalidCorpus

CODES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
DOCUMENTS = [[[5, 6, 7], [8]], [[9, 10]], [[11], [12, 13, 14], [15]]]


def write(folder: Path, code: int = 8, documents: Sequence = DOCUMENTS, name: str = "text") -> Path:
    """Documents of sequences of tokens."""
    sequences = [
        np.array(one, CODES.get(code, "<f4")) for document in documents for one in document
    ]
    lengths = [one.size for one in sequences]
    pointers = np.cumsum([0, *[one.nbytes for one in sequences]])[:-1]
    index = megatron_index(lengths, pointers, np.cumsum([0, *map(len, documents)]), code)
    (folder / f"{name}.idx").write_bytes(index)
    path = folder / f"{name}.bin"
    path.write_bytes(b"".join(one.tobytes() for one in sequences))
    return path


@pytest.mark.parametrize("code", CODES)
def test_every_type_of_integers_is_what_the_index_says(tmp_path: Path, code: int) -> None:
    """Of the file's own name nothing follows."""
    path = write(tmp_path, code)

    layout = read(path)

    assert (layout.format, layout.first_byte, layout.dtype) == (
        "megatron",
        0,
        np.dtype(CODES[code]),
    )
    assert tokens(path, layout) == list(range(5, 16))
    assert ends(layout) == [4, 6, 11]
    assert layout.documents is not None
    assert layout.documents.count == 3


def test_documents_of_many_sequences_end_where_their_last_one_does(tmp_path: Path) -> None:
    """More of them than are read at once."""
    random = np.random.default_rng(0)
    sizes = random.integers(0, 3, 140_000)
    documents = [[[1] * 2] * size for size in sizes.tolist()]
    path = write(tmp_path, documents=documents)

    assert ends(read(path)) == np.cumsum(2 * sizes).tolist()


def test_bytes_about_what_sequences_hold_besides_text_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path)
    with path.with_suffix(".idx").open("ab") as file:
        file.write(bytes(6))

    assert read(path).token_count == 11


def changed(path: Path, at: int, new: bytes) -> None:
    index = path.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    content[at : at + len(new)] = new
    index.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "new", "problem"),
    [
        (0, b"MMIDIDY", r"begins with b'MMIDIDY.*pass --format raw"),
        (9, struct.pack("<Q", 2), "version 2"),
        (17, b"\x07", "type 7, not uint8, int8, int16, int32, int64, uint16"),
        (17, b"\x09", "type 9"),
        (18, struct.pack("<Q", 5), "5 sequences and 4 document offsets"),
        (18, struct.pack("<Q", 2**63), "sequences and 4 document offsets"),
        (26, struct.pack("<Q", 2**64 - 1), "6 sequences and 18446744073709551615 document"),
        (34, struct.pack("<i", 4), "are not end to end"),
        (34, struct.pack("<i", -3), "are not end to end"),
        (34 + 24, struct.pack("<q", 2), "are not end to end"),
        (34 + 24 + 8, struct.pack("<q", 2**62), "are not end to end"),
        (34 + 72, struct.pack("<q", 1), "the first document begins at 1, not at 0"),
        (34 + 72, struct.pack("<q", -1), "the first document begins at -1"),
        (34 + 72 + 8, struct.pack("<q", 7), "document ends have to ascend"),
        (34 + 72 + 24, struct.pack("<q", 5), "the last document ends at 5, not at 6"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, at: int, new: bytes, problem: str
) -> None:
    path = write(tmp_path)
    changed(path, at, new)

    with pytest.raises(InvalidCorpus, match=rf"text\.idx: .*{problem}"):
        read(path)


@pytest.mark.parametrize("kept", [0, 10, 33, 34, 60, 137])
def test_a_truncated_index_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path)
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:kept])

    with pytest.raises(InvalidCorpus, match=r"text\.idx: "):
        read(path)


@pytest.mark.parametrize("size", [20, 24])
def test_tokens_of_another_size_than_the_index_says_are_refused(tmp_path: Path, size: int) -> None:
    path = write(tmp_path)
    path.write_bytes(bytes(size))

    problem = f"its sequences have 22 bytes, but the token file has {size}"
    with pytest.raises(InvalidCorpus, match=problem):
        read(path)


def test_an_index_without_tokens_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, documents=[[[]], [[]]])

    with pytest.raises(InvalidCorpus, match="its sequences have 0 bytes"):
        read(path)
