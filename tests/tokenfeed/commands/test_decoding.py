"""Token ids as text, where a command prints some."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenfeed.commands.decoding import decoder
from tokenfeed.errors import InvalidRequest
from tokenfeed.server.ingest.tokenize.tokenizer import END_OF_BYTES, TokenizerFile, load_tokenizer


def test_what_was_ingested_as_bytes_is_printed_as_text() -> None:
    """The quickstart ingests without a tokenizer.json, and a user wants to read the result."""
    tokenizer = load_tokenizer(TokenizerFile.read("bytes", parses_special=False))
    (ids,) = tokenizer.encode_each(["über alles"])
    end = tokenizer.token_id(END_OF_BYTES)
    assert end is not None

    assert decoder("bytes")([*ids, end]) == "über alles<|endoftext|>"
    assert decoder("bytes")([*ids][1:]) == "\ufffdber alles", "a row may begin within a character"


def test_tokens_of_another_tokenizer_are_not_shown_as_bytes() -> None:
    """A page of end tokens would look like a damaged corpus."""
    with pytest.raises(InvalidRequest, match="token 50256 is not a token of bytes, which are 0 to"):
        decoder("bytes")([104, 50256])


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    """A user may have mistyped the word bytes, or the path."""
    pytest.importorskip("tokenizers", exc_type=ImportError)
    for name in (str(tmp_path / "no.json"), "byte"):
        with pytest.raises(InvalidRequest, match=f'--tokenizer: {name} is neither "bytes" nor'):
            decoder(name)
