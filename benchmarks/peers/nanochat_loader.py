"""nanochat's tokenizing loader, by its form: row groups -> `tiktoken` in threads -> rows of tokens.

Source: github.com/karpathy/nanochat, nanochat/dataloader.py and tokenizer.py at 0b949d9. Four
threads encode 128 texts at once, and a token is put before each document. A row of 2,048 tokens is
filled from 1,000 documents that wait: by the longest one that fits, or, if none fits, by the
beginning of the shortest. A training process does that in every run and keeps no tokens, so this
writes none. Rows are of numpy here, which spares the import of torch.
Run: python -m benchmarks.peers.nanochat_loader PAGES TOKENIZER OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import tiktoken

_TEXTS, _THREADS = 128, 4
_DOCUMENTS = 1000
"""From which the next one of a row is chosen."""
_ROW = 2049
_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def main() -> None:
    """Encode all files of a folder."""
    pages, tokenizer_path, out = sys.argv[1:]
    Path(out).mkdir()
    waiting: list[list[int]] = []
    row = np.empty(_ROW, np.int64)
    place = 0
    for tokens in documents(Path(pages), encoding_of(Path(tokenizer_path))):
        waiting.append(tokens)
        while len(waiting) == _DOCUMENTS:
            place = add_document(waiting, row, place) % _ROW


def documents(pages: Path, encoding: tiktoken.Encoding) -> Iterator[list[int]]:
    """Yield the tokens of each document, behind the one that begins it."""
    for path in sorted(pages.glob("*.parquet")):
        file = pyarrow.parquet.ParquetFile(path)
        for group in range(file.num_row_groups):
            texts = file.read_row_group(group).column("text").to_pylist()
            for first in range(0, len(texts), _TEXTS):
                some = texts[first : first + _TEXTS]
                for tokens in encoding.encode_ordinary_batch(some, num_threads=_THREADS):
                    yield [encoding.eot_token, *tokens]


def add_document(waiting: list[list[int]], row: np.ndarray, place: int) -> int:
    """Take a document, fill the row from a place on, and return where that ends."""
    room = row.size - place
    fitting = [
        (len(tokens), -number) for number, tokens in enumerate(waiting) if len(tokens) <= room
    ]
    if fitting:
        tokens = waiting.pop(-max(fitting)[1])
    else:
        tokens = waiting.pop(min(range(len(waiting)), key=lambda number: len(waiting[number])))
    taken = tokens[:room]
    row[place : place + len(taken)] = taken
    return place + len(taken)


def encoding_of(path: Path) -> tiktoken.Encoding:
    """Return GPT-2's tokenizer for tiktoken."""
    ranks = json.loads(path.read_text())["model"]["vocab"]
    end = ranks.pop("<|endoftext|>")
    # A tokenizer.json writes bytes that are no printable sign as the code points from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    bytes_of = {chr(byte): byte for byte in plain}
    bytes_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    mergeable = {bytes(map(bytes_of.__getitem__, text)): rank for text, rank in ranks.items()}
    return tiktoken.Encoding(
        "gpt2", pat_str=_SPLIT, mergeable_ranks=mergeable, special_tokens={"<|endoftext|>": end}
    )


if __name__ == "__main__":
    main()
