"""Raw tokens: all of the file, or an error."""

from __future__ import annotations

import numpy as np
import pytest

from server.formats import raw
from tokenfeed.errors import BadCorpus


@pytest.mark.parametrize(("dtype", "tokens"), [("<u2", 6), ("<u4", 3)])
def test_all_of_the_file_is_tokens(dtype: str, tokens: int) -> None:
    """nanoGPT writes no header."""
    layout = raw.layout("train.bin", 12, np.dtype(dtype))

    assert (layout.first_byte, layout.token_count, layout.content_bytes) == (0, tokens, 12)


@pytest.mark.parametrize("file_bytes", [0, 1, 3, 2**31 + 1])
def test_a_file_that_ends_within_a_token_is_refused(file_bytes: int) -> None:
    """It is of another type, or its end is missing."""
    with pytest.raises(BadCorpus, match=r"train\.bin"):
        raw.layout("train.bin", file_bytes, np.dtype("<u2"))


def test_files_beyond_2_gib_and_2_32_tokens_are_counted_in_full() -> None:
    """A count that is cut to 32 bits loses most of a corpus."""
    assert raw.layout("train.bin", 2**40 + 2, np.dtype("<u2")).token_count == 2**39 + 1
