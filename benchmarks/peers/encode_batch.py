"""The bare loop: parquet -> `tokenizers.encode_batch` -> a file of tokens.

Source: huggingface.co/docs/tokenizers, "Quicktour": texts in batches use all cores, by threads of
the library. It syncs nothing, resumes nothing and has no index of documents. It imports nothing
that it does not use, since its start is measured too.
Run: python -m benchmarks.peers.encode_batch PAGES TOKENIZER OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
from tokenizers import Tokenizer

END = "<|endoftext|>"
_DOCUMENTS = 1000
"""Per call."""


def main() -> None:
    """Encode all files of a folder."""
    pages, tokenizer_path, out = sys.argv[1:]
    tokenizer = Tokenizer.from_file(tokenizer_path)
    end = tokenizer.token_to_id(END)
    Path(out).mkdir()
    with Path(out, "tokens.bin").open("wb") as file:
        for path in sorted(Path(pages).glob("*.parquet")):
            texts = pyarrow.parquet.read_table(path).column("text").to_pylist()
            for first in range(0, len(texts), _DOCUMENTS):
                batch = texts[first : first + _DOCUMENTS]
                for document in tokenizer.encode_batch(batch, add_special_tokens=False):
                    np.array([*document.ids, end], np.uint16).tofile(file)


if __name__ == "__main__":
    main()
