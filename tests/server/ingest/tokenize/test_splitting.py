"""Long text is split only where none of its tokens changes."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.server.ingest.corpus import documents
from tokenfeed.server.ingest.tokenize import splitting


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "PIECE_CHARS", 1000)
    monkeypatch.setattr(splitting, "_SEARCH_CHARS", 400)


def tokenizers() -> dict[str, Any]:
    """Of each way to split text that is in use: GPT-2's, Llama 3's, BERT's, SentencePiece's."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    splits = {
        "GPT-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "GPT-2, with a space before": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "Llama 3": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(llama3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        "BERT": pre_tokenizers.BertPreTokenizer(),
        "SentencePiece": pre_tokenizers.Metaspace(prepend_scheme="always"),
        "SentencePiece, unsplit": pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        "none": None,
    }
    made = {}
    for name, split in splits.items():
        tokenizer = Tokenizer(models.BPE(unk_token="?"))
        tokenizer.normalizer = normalizers.NFC()
        if split is not None:
            tokenizer.pre_tokenizer = split
        trainer = trainers.BpeTrainer(
            vocab_size=800, special_tokens=["?"], show_progress=False, max_token_length=12
        )
        tokenizer.train_from_iterator(documents(300, seed=2), trainer)
        made[name] = tokenizer
    return made


NAMES = (
    *("GPT-2", "GPT-2, with a space before", "Llama 3", "BERT", "SentencePiece"),
    *("SentencePiece, unsplit", "none"),
)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return tokenizers()


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_the_pieces_are_those_of_the_whole(made: dict[str, Any], name: str) -> None:
    """For any tokenizer; one that allows no split gets all of the text at once."""
    tokenizer = made[name]

    def encode(texts: list[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    text = "\n\n".join(documents(400, seed=3))
    pieces = list(splitting.split_text(iter([text]), encode))

    assert "".join(pieces) == text
    assert list(chain.from_iterable(encode(pieces))) == encode([text])[0]
    if name in ("GPT-2", "Llama 3", "BERT", "SentencePiece"):
        assert len(pieces) > 10


def test_pieces_do_not_depend_on_how_the_text_arrives(made: dict[str, Any]) -> None:
    """Nor on where reading began, as long as that was a cut."""
    tokenizer = made["GPT-2"]

    def encode(texts: list[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    text = "".join(documents(300, seed=4))
    pieces = list(splitting.split_text(iter([text]), encode))

    for size in (1, 77, 5000):
        blocks = (text[first : first + size] for first in range(0, len(text), size))
        assert list(splitting.split_text(blocks, encode)) == pieces
    for count in (1, 3):
        rest = text[len("".join(pieces[:count])) :]
        assert list(splitting.split_text(iter([rest]), encode)) == pieces[count:]


def test_text_without_a_place_to_cut_stays_whole_or_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cut would change its tokens: this tokenizer counts from the front."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [list(range(len(text))) for text in texts]

    text = "a b " * 5000

    assert list(splitting.split_text(iter([text]), encode)) == [text]
    monkeypatch.setattr(splitting, "PIECE_CHARS_MAX", 4000)
    with pytest.raises(splitting.CannotSplit, match="no place to cut it in 4,000 characters"):
        list(splitting.split_text(iter([text]), encode))


def test_repetitive_text_is_not_split_by_coincidence(made: dict[str, Any]) -> None:
    """Merges of whole phrases, aligned to the text's beginning, look the same from many places."""
    from tokenizers import Tokenizer, models

    tokenizer_file = {sign: number for number, sign in enumerate(" abc")}
    merges = []
    token = " abc"
    for left, right in ((" ", "a"), ("b", "c"), (" a", "bc")):
        merges.append((left, right))
        tokenizer_file[left + right] = len(tokenizer_file)
    for _ in range(4):
        merges.append((token, token))
        token += token
        tokenizer_file[token] = len(tokenizer_file)
    tokenizer = Tokenizer(models.BPE(tokenizer_file, merges))

    def encode(texts: list[str]) -> list[list[int]]:
        return [tokenizer.encode(text).ids for text in texts]

    text = " abc" * 5001
    pieces = list(splitting.split_text(iter([text]), encode))
    assert list(chain.from_iterable(encode(pieces))) == encode([text])[0]


def test_no_text_has_no_pieces() -> None:
    assert list(splitting.split_text(iter(()), lambda texts: [[] for _ in texts])) == []


@pytest.mark.parametrize(
    "chars", [200_000, pytest.param(None, marks=[pytest.mark.slow, pytest.mark.proof], id="all")]
)
def test_tiny_shakespeare_is_cut_without_a_trace(shared_data: Path, chars: int | None) -> None:
    """With GPT-2's own tokenizer, in a piece for each thousand characters."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(shared_data / "gpt2-tokenizer.json"))
    text = (shared_data / "tinyshakespeare.txt").read_text()[:chars]

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(texts)]

    pieces = list(splitting.split_text(iter([text]), encode))

    assert len(pieces) > len(text) // 1200
    assert list(chain.from_iterable(encode(pieces))) == encode([text])[0]
