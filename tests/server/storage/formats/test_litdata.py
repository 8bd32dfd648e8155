"""LitData's chunks of tokens: offsets, and documents end to end; the type is in index.json."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read, tokens
from tests.server.storage.formats.writing import litdata_chunk, litdata_index
from tokenfeed.errors import InvalidCorpus


def write(folder: Path, documents: list[list[int]], writer: str, dtype: str) -> Path:
    """A chunk, and its index."""
    path = folder / "chunk-0-0.bin"
    path.write_bytes(litdata_chunk([np.array(each, dtype) for each in documents]))
    counts = {path.name: sum(map(len, documents))}
    (folder / "index.json").write_bytes(litdata_index(writer, counts))
    return path


@pytest.mark.parametrize(
    ("writer", "dtype"),
    [
        ("no_header_tensor:16", "<i4"),
        ("no_header_tensor:18", "<i8"),
        ("no_header_tensor:20", "<u2"),
        ("no_header_numpy:5", "<u2"),
        ("no_header_numpy:3", "<i8"),
    ],
)
def test_items_are_documents_end_to_end(tmp_path: Path, writer: str, dtype: str) -> None:
    """Each type has a code of its own, for PyTorch and for NumPy; a document may be empty."""
    path = write(tmp_path, [[1, 2, 3], [], [4], [5, 6, 1000]], writer, dtype)

    layout = read(path)

    assert (layout.format, layout.dtype) == ("litdata", np.dtype(dtype))
    assert tokens(path, layout) == [1, 2, 3, 4, 5, 6, 1000]
    assert layout.documents is not None
    assert layout.documents.count == 4
    assert np.concatenate(list(layout.documents.ends())).tolist() == [3, 3, 4, 7]


@pytest.mark.parametrize("writer", ["no_header_tensor:1", "no_header_numpy:8", "no_header_tensor:"])
def test_items_of_floats_are_refused(tmp_path: Path, writer: str) -> None:
    """They would be served as ids."""
    path = write(tmp_path, [[1, 2, 3]], writer, "<f4")

    with pytest.raises(InvalidCorpus, match="of LitData, no integers"):
        read(path)


INT32 = "no_header_tensor:16"


@pytest.mark.parametrize(
    "index",
    [
        *(b"{}", b"[", b'{"shards": []}', None),
        litdata_index("jpeg", {"chunk-0-0.bin": 3}),
        litdata_index(INT32, {"chunk-0-1.bin": 3}),
        litdata_index(INT32, {"chunk-0-0.bin": None}),
    ],
)
def test_a_chunk_of_samples_or_without_its_index_is_refused(
    tmp_path: Path, index: bytes | None
) -> None:
    """Its items may be anything, as those of MosaicML's shards."""
    path = write(tmp_path, [[1, 2, 3]], "no_header_tensor:16", "<i4")
    (tmp_path / "index.json").unlink()
    if index is not None:
        (tmp_path / "index.json").write_bytes(index)

    with pytest.raises(InvalidCorpus, match="is a chunk of MosaicML's MDS, or of LitData without"):
        read(path)
    with pytest.raises(InvalidCorpus, match="is no chunk of LitData's tokens, or lacks"):
        read(path, form="litdata")


def test_a_chunk_of_another_size_than_its_index_says_is_refused(tmp_path: Path) -> None:
    """It was cut off, or each item has more than tokens."""
    path = write(tmp_path, [[1, 2, 3]], INT32, "<i4")
    (tmp_path / "index.json").write_bytes(litdata_index(INT32, {path.name: 4}))

    with pytest.raises(InvalidCorpus, match="records 4 int32 tokens, but 12 bytes follow"):
        read(path)


def test_an_item_that_ends_within_a_token_is_refused(tmp_path: Path) -> None:
    """An offset was damaged, or the index is of other chunks."""
    path = write(tmp_path, [[1, 2, 3], [4, 5, 6]], "no_header_tensor:16", "<i4")
    content = bytearray(path.read_bytes())
    content[8] += 2
    path.write_bytes(content)

    with pytest.raises(InvalidCorpus, match="has an item that ends within a token"):
        read(path)
