"""litgpt's and TinyLlama's chunks: tokens behind a header of 24 bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read, tokens
from tests.server.storage.formats.writing import litgpt_header
from tokenfeed.errors import InvalidCorpus


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "<u2"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (1, "u1"), (2, "i1")]
)
def test_the_header_is_not_served_as_tokens(tmp_path: Path, code: int, dtype: str) -> None:
    content = [1, 0, 7, 100]
    path = tmp_path / "train_slim_0000000000.bin"
    path.write_bytes(litgpt_header(4, code=code) + np.array(content, dtype).tobytes())

    layout = read(path)

    assert (layout.format, layout.first_byte, layout.dtype) == ("litgpt", 24, np.dtype(dtype))
    assert tokens(path, layout) == content


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (litgpt_header(5), "records 5 uint16 tokens, but 8 bytes follow"),
        (litgpt_header(0), "records 0 uint16 tokens, but 8 bytes follow"),
        (litgpt_header(2, code=6), "has the type 6 of litgpt, which is no integer"),
        (litgpt_header(4, code=9), "has the type 9 of litgpt"),
        (litgpt_header(4, version=2), "has no header of litgpt's version 1"),
        (b"LITPKDS", "has 15 bytes, fewer than the header of a chunk of litgpt, 24"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, header: bytes, problem: str) -> None:
    """A truncated chunk, and floats: nothing is guessed."""
    path = tmp_path / "x.bin"
    path.write_bytes(header + bytes(8))

    with pytest.raises(InvalidCorpus, match=rf"x\.bin: .*{problem}"):
        read(path)


def test_a_file_without_the_magic_is_refused_with_the_option(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(64)))

    with pytest.raises(InvalidCorpus, match="has no header of litgpt's version 1"):
        read(path, form="litgpt")
