"""Raw tokens: all of the file, or an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read
from tokenfeed.errors import InvalidCorpus


@pytest.mark.parametrize(("dtype", "tokens"), [("<u2", 8), ("<u4", 4), ("<i8", 2), ("|u1", 16)])
def test_all_of_the_file_is_tokens(tmp_path: Path, dtype: str, tokens: int) -> None:
    """nanoGPT writes no header."""
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(range(16)))

    layout = read(path, dtype)

    assert (layout.format, layout.first_byte, layout.token_count) == ("raw", 0, tokens)
    assert layout.content_bytes == path.stat().st_size
    assert not layout.dtype_assumed
    assert read(path).dtype_assumed


@pytest.mark.parametrize("file_bytes", [0, 1, 3, 2**31 + 1])
def test_a_file_that_ends_within_a_token_is_refused(tmp_path: Path, file_bytes: int) -> None:
    """It is of another type, or its end is missing."""
    path = tmp_path / "train.bin"
    path.touch()
    os.truncate(path, file_bytes)

    with pytest.raises(InvalidCorpus, match=r"train\.bin"):
        read(path)


def test_files_beyond_2_gib_and_2_32_tokens_are_counted_in_full(tmp_path: Path) -> None:
    """A count that is cut to 32 bits loses most of a corpus."""
    path = tmp_path / "train.bin"
    path.touch()
    os.truncate(path, 2**34 + 2)

    assert read(path).token_count == 2**33 + 1
    assert read(path, "<u2").dtype == np.dtype("<u2")
