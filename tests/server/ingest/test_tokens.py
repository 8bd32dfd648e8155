"""Tables of tokens from files to shards, by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.ingest.corpus import stored, write_jsonl, write_parquet
from tests.server.ingest.running import ingest, ingested

pytestmark = pytest.mark.slow

ROWS = {
    "input_ids": [[5, 6, 7, 8], [9, 10, 0], [11, 12]],
    "labels": [[-100, -100, 7, 8], [-100, 10, -100], [11, 12]],
    "attention_mask": [[1, 1, 1, 1], [1, 1, 0], [1, 1]],
}
TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]
TARGETS = [0, 0, 1, 1, 0, 1, 1, 1]
COLUMNS = ("--tokens-column", "input_ids", "--labels-column", "labels")

Write = Callable[[Path, dict[str, list[Any]]], Path]


def as_jsonl(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    return write_jsonl(path / "x.jsonl", (dict(zip(columns, row, strict=True)) for row in rows))


def as_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    return write_parquet(path / "x.parquet", columns)


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_labels_of_minus_100_are_no_targets_and_padding_is_left_out(
    tmp_path: Path, write: Write
) -> None:
    """What datasets and trl keep of a tokenized dataset."""
    path = write(tmp_path, ROWS)

    said = ingested(path, "--tokenizer", "bytes", "--out", tmp_path / "out", *COLUMNS)

    assert "8 tokens (5 of them targets), 3 documents" in said
    assert stored(tmp_path / "out" / "train") == TOKENS
    assert stored(tmp_path / "out" / "train", ".ds.loss", "|u1") == TARGETS
    split = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]
    assert split["targets"] == 5
    again = ingested(path, "--tokenizer", "bytes", "--out", tmp_path / "out", *COLUMNS)
    assert again.splitlines()[0] == said.splitlines()[0]


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_without_labels_every_token_is_learned(tmp_path: Path, write: Write) -> None:
    """Labels that lie beside the tokens are not ignored in silence."""
    only_tokens = {"input_ids": ROWS["input_ids"]}
    path = write(tmp_path, only_tokens)
    words = ("--tokenizer", "bytes", "--tokens-column", "input_ids", "--append-token")
    ingested(path, "--out", tmp_path / "a", *words, "<|endoftext|>")
    assert stored(tmp_path / "a" / "train") == [5, 6, 7, 8, 256, 9, 10, 0, 256, 11, 12, 256]
    assert not (tmp_path / "a" / "train" / "000000.ds.loss").exists()

    path = write(tmp_path, ROWS)
    done = ingest(path, "--out", tmp_path / "b", *words[:-1])
    assert done.returncode == 1
    assert "column 'labels' says which tokens are targets; pass --labels-column" in done.stderr
    ingested(path, "--out", tmp_path / "b", *words[:-1], "--labels-column", "none")
    assert stored(tmp_path / "b" / "train") == TOKENS


MASKS = [[0, 0, 1, 1], [0, 1, 0], [1, 1]]


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
@pytest.mark.parametrize("prefix", ["", "chosen_"])
@pytest.mark.parametrize("name", ["completion_mask", "assistant_masks", "loss_mask", "labels"])
def test_each_column_of_targets_is_known_and_taken(
    tmp_path: Path, write: Write, prefix: str, name: str
) -> None:
    """As TRL calls them; beside chosen_input_ids their names begin alike."""
    rows = {key: ROWS[key] for key in ("input_ids", "attention_mask")}
    rows[name] = ROWS["labels"] if name == "labels" else MASKS
    path = write(tmp_path, {f"{prefix}{key}": values for key, values in rows.items()})
    words = ("--tokenizer", "bytes", "--tokens-column", f"{prefix}input_ids")

    refused = ingest(path, "--out", tmp_path / "refused", *words)
    assert f"column '{prefix}{name}' says which tokens are targets" in refused.stderr
    ingested(path, "--out", tmp_path / "out", *words, "--labels-column", f"{prefix}{name}")

    assert stored(tmp_path / "out" / "train") == TOKENS
    assert stored(tmp_path / "out" / "train", ".ds.loss", "|u1") == TARGETS


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_a_table_of_tokens_is_not_taken_for_text_without_a_hint(
    tmp_path: Path, write: Write
) -> None:
    path = write(tmp_path, ROWS)

    done = ingest(path, "--tokenizer", "bytes", "--out", tmp_path / "out")

    said = done.stdout + done.stderr
    assert "no column 'text'; for tokens pass --tokens-column input_ids" in said


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"input_ids": [[1, 2], [3, 257]]}, "token 257, which is not in [0, 257) of the tokenizer"),
        ({"input_ids": [[1, 2], [-1]]}, "token -1, which is not in [0, 257) of the tokenizer"),
        ({"input_ids": [[1], []]}, "empty document"),
        (
            {"input_ids": [[1], [2, 3]], "attention_mask": [[1], [1]]},
            "column 'attention_mask' does not have as many numbers as 'input_ids'",
        ),
        ({"input_ids": [[1], [2]], "attention_mask": [[1], [0]]}, "nothing but padding"),
    ],
)
def test_tokens_that_cannot_be_ingested_are_left_out_and_counted(
    tmp_path: Path, columns: dict[str, list[Any]], problem: str
) -> None:
    path = as_jsonl(tmp_path, columns)
    words = ("--tokenizer", "bytes", "--tokens-column", "input_ids", "--out", tmp_path / "out")

    said = ingested(path, *words)

    assert f"not ingested: {path}: {problem}, 1 time(s)" in said


def test_labels_that_are_shifted_end_the_ingest(tmp_path: Path) -> None:
    """Each token would be masked by what is said of the one before it."""
    path = as_jsonl(tmp_path, {"input_ids": [[1, 2, 3]], "labels": [[2, 3, -100]]})

    done = ingest(path, "--tokenizer", "bytes", "--out", tmp_path / "out", *COLUMNS)

    assert done.returncode == 1
    assert (
        "labels that are other tokens than those of 'input_ids': are they shifted?" in done.stderr
    )


def test_text_is_no_column_of_tokens(tmp_path: Path) -> None:
    """A column of another type leaves its file out."""
    path = as_parquet(tmp_path, {"input_ids": ["a", "b"]})

    done = ingest(
        path, "--tokenizer", "bytes", "--out", tmp_path / "out", "--tokens-column", "input_ids"
    )

    assert done.returncode == 1
    assert "column 'input_ids' is not a list of integers" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--labels-column", "x"), "--labels-column: needs --tokens-column"),
        (("--tokens-column", "x", "--text-column", "y"), "--tokens-column: cannot be combined"),
        (
            ("--tokens-column", "x", "--messages-column", "y", "--chat-template", "z"),
            "--messages-column: cannot be combined with --tokens-column; omit one of them",
        ),
    ],
)
def test_an_invalid_option_of_tokens_is_named(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])

    done = ingest(path, "--out", tmp_path / "out", "--tokenizer", "bytes", *options)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {problem}"), done.stderr
