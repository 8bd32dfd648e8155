"""Helpers of the tests of ingest: text, a tokenizer, and naive implementations."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
WORDS = (
    *("the of and to in was his Her it's I'd 1984 -- \"quoted\" na\u00efve Stra\u00dfe".split()),
    *("\u6771\u4eac", "\u043c\u0438\u0440", "...", "\t", "\n", "\n\n", "", "  "),
)


def documents(count: int, seed: int = 0, words_max: int = 60) -> list[str]:
    """Text with contractions, numbers, other scripts and runs of spaces; none is empty."""
    choose = random.Random(seed)
    return [
        f"{number} " + " ".join(choose.choices(WORDS, k=choose.randint(1, words_max)))
        for number in range(count)
    ]


def make_tokenizer(path: Path) -> Path:
    """A byte-level BPE of 600 tokens, with two that are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[END, "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(2000, seed=9), trainer)
    tokenizer.save(str(path))
    return path


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Plain, or compressed by the suffix of its name."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = pyarrow.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def write_parquet(path: Path, columns: dict[str, Sequence[Any]], row_group_size: int = 100) -> Path:
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size)
    return path


def naive(tokenizer: Path, texts: Iterable[str], *, end: str | None = None) -> list[int]:
    """Their tokens, by the plain use of the library."""
    made = Tokenizer.from_file(str(tokenizer))
    made.encode_special_tokens = True
    after = [] if end is None else [made.token_to_id(end)]
    return [t for text in texts for t in made.encode(text, add_special_tokens=False).ids + after]


def stored(folder: Path, suffix: str = ".ds", dtype: str = "<u2") -> list[int]:
    """The content of the shards of a split, one after another."""
    return [
        number
        for path in sorted(folder.glob(f"*{suffix}"))
        for number in np.fromfile(path, dtype).tolist()
    ]


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
