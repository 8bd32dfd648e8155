"""A unit of text -> tokens, masks and splits; problems are counted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.server.ingest.corpus import END, documents, naive
from tokenfeed.errors import InvalidSource
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Lines, Rows, SourceOffset, Strings, TextChunk, Unit


def recipe(
    tokenizer: Path | str = "bytes",
    columns: tuple[str, ...] = ("text",),
    *,
    prepend: int | None = None,
    append: int | None = None,
    val_fraction: float = 0.0,
) -> Recipe:
    tokenizer_file = TokenizerFile.read(str(tokenizer), parses_special=False)
    return Recipe(tokenizer_file, columns, prepend, append, val_fraction)


def encoded(content: Rows | Lines | TextChunk, recipe: Recipe) -> EncodedUnit:
    return encode_unit(Unit(SourceOffset(0, 0), SourceOffset(0, 1), content, 0), recipe)


def rows(*texts: str | bytes | None) -> Rows:
    values = [text.encode() if isinstance(text, str) else text for text in texts]
    return table(values, first_row=10)


def table(*columns: list[bytes | None] | list[bytes], first_row: int = 0) -> Rows:
    return Rows(tuple(map(Strings.of, columns)), first_row)


def test_documents_are_encoded_one_by_one(tokenizer: Path) -> None:
    """No token spans two of them, and only requested tokens are added between them."""
    texts = documents(500)

    part = encoded(rows(*texts), recipe(tokenizer))

    assert part.tokens.tolist() == naive(tokenizer, texts)
    lengths = [len(naive(tokenizer, [text])) for text in texts]
    assert part.lengths.tolist() == lengths


def test_tokens_stand_before_and_after_each_document() -> None:
    part = encoded(rows("ab", "c"), recipe(prepend=7, append=256))

    assert part.tokens.tolist() == [7, 97, 98, 256, 7, 99, 256]
    assert part.lengths.tolist() == [4, 3]
    assert part.tokens.dtype == np.dtype("<u2")


def test_prompts_are_not_learned_and_responses_with_their_end_are(tokenizer: Path) -> None:
    """datatrove's convention: 1 for what counts."""
    pairs = [("ask", "answer"), ("", "only"), ("why?", "")]
    prompts, responses = zip(*pairs, strict=True)
    content = table([one.encode() for one in prompts], [one.encode() for one in responses])

    part = encoded(content, recipe("bytes", ("prompt", "response"), prepend=7, append=256))

    assert part.mask is not None
    expected = [
        [
            (7, False),
            *((ord(sign), False) for sign in prompt),
            *((ord(sign), True) for sign in response),
            (256, True),
        ]
        for prompt, response in pairs
    ]
    found = list(zip(part.tokens.tolist(), part.mask.tolist(), strict=True))
    assert found == [entry for pair in expected for entry in pair]
    assert part.lengths.tolist() == [len(pair) for pair in expected]


def test_a_document_belongs_to_validation_by_its_own_hash_alone() -> None:
    """In any kind of file, and with any other documents."""
    texts = documents(3000)
    chosen = [
        int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < 2**64 // 10
        for text in texts
    ]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    how = recipe(val_fraction=0.1)

    assert encoded(rows(*texts), how).is_val.tolist() == chosen
    assert encoded(Lines(lines, 0), how).is_val.tolist() == chosen
    assert encoded(rows(*texts[100:50:-1]), how).is_val.tolist() == chosen[100:50:-1]
    assert 0.08 < sum(chosen) / len(chosen) < 0.12
    assert not encoded(rows(*texts), recipe()).is_val.any()


def test_a_pair_has_a_hash_of_its_own() -> None:
    """Otherwise "a" and "bc" would be the same as "ab" and "c"."""
    numbers = [b"%d" % n for n in range(200)]
    content = table(
        [b"a" + n for n in numbers] + [b"a"] * 200, [b"b"] * 200 + [n + b"b" for n in numbers]
    )
    part = encoded(content, recipe("bytes", ("p", "r"), append=256, val_fraction=0.5))

    assert part.is_val[:200].tolist() != part.is_val[200:].tolist()


def test_a_long_document_is_cut_without_a_trace(tokenizer: Path) -> None:
    """A book as one row."""
    book = "\n".join(documents(18_000))
    assert len(book) > 2 << 20

    part = encoded(rows("short", book, "short"), recipe(tokenizer, append=0))

    assert part.tokens.tolist() == naive(tokenizer, ["short", book, "short"], end=END)
    assert part.lengths.size == 3


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "null"),
        (b"\xff\xfe", "invalid UTF-8"),
        (b"caf\xc3", "invalid UTF-8"),
        (b"", "empty document"),
    ],
)
def test_a_row_that_is_not_text_is_counted_and_left_out(value: bytes | None, what: str) -> None:
    part = encoded(rows("a", value, "b"), recipe())

    assert part.tokens.tolist() == [97, 98]
    assert [(problem.what, problem.where) for problem in part.problems] == [(what, "row 11")]


def test_a_document_that_has_no_tokens_is_counted_and_left_out(tmp_path: Path) -> None:
    """A tokenizer without an unknown token silently drops unknown text."""
    from tokenizers import Tokenizer, models

    path = tmp_path / "abc.json"
    Tokenizer(models.BPE({"a": 0, "b": 1}, [])).save(str(path))

    part = encoded(rows("a", "\u6771", "b"), recipe(path, append=1))

    assert part.tokens.tolist() == [0, 1, 1, 1]
    assert [(problem.what, problem.where) for problem in part.problems] == [("no tokens", "row 11")]


def test_a_document_that_cannot_be_encoded_is_left_out_alone(tmp_path: Path) -> None:
    """The thousands of others are kept."""
    part = encoded(rows("a a", "a c", "b"), recipe(two_words(tmp_path)))

    assert part.tokens.tolist() == [0, 0, 1]
    ((what, where),) = [(problem.what, problem.where) for problem in part.problems]
    assert what.startswith("cannot be encoded: ")
    assert where == "row 11"


def test_a_file_of_text_that_cannot_be_encoded_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Half of a document would be another one."""
    passage = TextChunk("book.txt", "a c", True, True, False)

    with pytest.raises(InvalidSource) as caught:
        encoded(passage, recipe(two_words(tmp_path)))

    assert caught.value.subject == "book.txt"
    assert caught.value.problem.startswith("cannot be encoded: ")


def two_words(folder: Path) -> Path:
    """A tokenizer of "a" and "b" without a token for anything else."""
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "words.json"
    made.save(str(path))
    return path


def test_a_tokenizer_that_leaves_out_merges_by_chance_is_made_not_to(
    tokenizer: Path, tmp_path: Path
) -> None:
    """As one that was saved in the middle of a training."""
    content = json.loads(tokenizer.read_text())
    content["model"]["dropout"] = 0.5
    path = tmp_path / "dropping.json"
    path.write_text(json.dumps(content))
    text = rows("the of and to in was his " * 20)

    assert (
        encoded(text, recipe(path)).tokens.tolist()
        == encoded(text, recipe(tokenizer)).tokens.tolist()
    )


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "to', "truncated line or invalid JSON"),
        (b'{"text": "\xff"}', "invalid UTF-8"),
        (b'{"text": null}', "null"),
        (b'{"text": 5}', "column 'text' is not text"),
        (b'["text"]', "not a JSON object"),
        (b"[" * 100_000, "truncated line or invalid JSON"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"text": ""}', "empty document"),
        (b'{"text": ' + b"9" * 5000 + b"}", "truncated line or invalid JSON"),
    ],
)
def test_a_line_that_is_not_a_document_is_counted_and_left_out(line: bytes, what: str) -> None:
    content = b'{"text": "a"}\n' + line + b'\n\n  \r\n{"text": "b", "more": [1]}'

    part = encoded(Lines(content, 1000), recipe())

    assert part.tokens.tolist() == [97, 98]
    assert [(problem.what, problem.where) for problem in part.problems] == [(what, "byte 1,014")]


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (b'{"body": "x", "url": "y"}', ""),
        (
            b'{"prompt": "x", "completion": "y"}',
            "; for pairs pass --prompt-column prompt --response-column completion",
        ),
        (b'{"messages": []}', "; for chats pass --messages-column messages"),
        (b'{"input_ids": [1]}', "; for tokens pass --tokens-column input_ids"),
    ],
)
def test_a_line_without_the_column_says_which_it_has_and_which_option_reads_them(
    line: bytes, cure: str
) -> None:
    """Pairs and chats are often tried without their options first."""
    (problem,) = encoded(Lines(line, 0), recipe()).problems

    assert problem.what == f"no column 'text'{cure}"
    assert problem.where == f"byte 0, it has {', '.join(json.loads(line))}"


def test_a_mark_of_the_encoding_before_the_first_line_does_not_matter() -> None:
    """As some editors leave it."""
    content = b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n'

    assert encoded(Lines(content, 0), recipe()).tokens.tolist() == [97, 98]


def test_a_passage_has_the_tokens_around_a_document_only_where_that_begins_and_ends() -> None:
    how = recipe(prepend=7, append=256)
    tokens = [
        encoded(TextChunk("book.txt", text, first, last, False), how).tokens.tolist()
        for text, first, last in (("a", True, False), ("b", False, False), ("c", False, True))
    ]

    assert tokens == [[7, 97], [98], [99, 256]]
