"""Tokenizers: text is text, whatever else a tokenizer.json configures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.server.ingest.corpus import END
from tokenfeed.errors import InvalidRequest
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile, load_tokenizer, token_dtype


def test_a_special_token_written_in_text_is_text_by_default(tokenizer: Path) -> None:
    """A page about tokenizers must not end a document, nor a user's words become control."""
    text = f"see {END} there"
    plain = load_tokenizer(TokenizerFile.read(str(tokenizer), parses_special=False))
    parsing = load_tokenizer(TokenizerFile.read(str(tokenizer), parses_special=True))

    end = plain.token_id(END)
    assert end is not None
    assert end not in plain.encode([text])[0].tolist()
    assert end in parsing.encode([text])[0].tolist()


def test_truncation_and_padding_of_a_tokenizer_are_ignored(tokenizer: Path, tmp_path: Path) -> None:
    """Cut at 512 tokens, or filled up to them, as for a classifier."""
    content = json.loads(tokenizer.read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    content["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": END,
    }  # fmt: skip
    special = {"SpecialToken": {"id": END, "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}},
    }  # fmt: skip
    path = tmp_path / "cutting.json"
    path.write_text(json.dumps(content))
    text = "the of and to in was his " * 4

    plain, cutting = (
        load_tokenizer(TokenizerFile.read(str(one), parses_special=False))
        for one in (tokenizer, path)
    )

    assert list(cutting.encode([text])[0]) == list(plain.encode([text])[0])
    assert len(plain.encode([text])[0]) > 5


def test_bytes_are_tokens_of_themselves() -> None:
    """For trials, without a tokenizer.json."""
    made = load_tokenizer(TokenizerFile.read("bytes", parses_special=False))

    assert [ids.tolist() for ids in made.encode_each(["aé", ""])] == [[97, 195, 169], []]
    assert made.token_id(END) == 256
    assert made.token_id("a") is None


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "<u2"), (65_537, "<u4"), (1, "<u2")])
def test_the_width_follows_from_the_greatest_id(
    monkeypatch: pytest.MonkeyPatch, size: int, dtype: str
) -> None:
    made = load_tokenizer(TokenizerFile.read("bytes", parses_special=False))
    monkeypatch.setattr(type(made), "vocab_size", size)

    assert token_dtype(made) == np.dtype(dtype)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": 1}'])
def test_a_file_that_is_not_a_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)

    with pytest.raises(InvalidRequest, match=r"--tokenizer: tokenizer\.json cannot be read"):
        load_tokenizer(TokenizerFile.read(str(path), parses_special=False))
    with pytest.raises(InvalidRequest, match=r"none\.json is not a file"):
        TokenizerFile.read(str(tmp_path / "none.json"), parses_special=False)
