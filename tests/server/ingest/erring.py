"""python -m tests.server.ingest.erring WORD ARGUMENT...: an ingest whose second engine is wrong.

In place of fastokens there is an engine that encodes by tokenizers, but gives another token first
for each text that has the word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokenfeed.server.ingest.tokenize import engine, tokenizer
from tokenfeed.server.ingest.tokenize.tokenizer import FASTOKENS_VERSION, TokenizerFile


class Erring:
    """What fastokens.Tokenizer is to ingest.  errs: says for which texts it is wrong."""

    def __init__(self, tokenizer_file: TokenizerFile, errs: Callable[[str], bool]) -> None:
        self._right = tokenizer._HuggingFace(tokenizer_file)
        self._errs = errs

    def encode_batch_flat(self, texts: list[str], **_: Any) -> tuple[bytes, bytes]:
        ids, counts = self._right.encode(texts)
        ends = np.cumsum([0, *counts])
        found = ids.astype("<u4")
        for first, text in zip(ends.tolist(), texts, strict=False):
            if self._errs(text):
                found[first] ^= 1
        return found.tobytes(), ends.astype("<u8").tobytes()


def install(monkeypatch: pytest.MonkeyPatch, errs: Callable[[str], bool]) -> None:
    """Put it in place of fastokens, in this process and its forks."""
    right = tokenizer.installed

    def installed(package: str) -> str:
        return FASTOKENS_VERSION if package == "fastokens" else right(package)

    monkeypatch.setattr(tokenizer, "installed", installed)
    monkeypatch.setattr(engine, "installed", installed)
    monkeypatch.setattr(tokenizer, "load_fastokens", lambda file: Erring(file, errs))
    tokenizer.load_tokenizer.cache_clear()


if __name__ == "__main__":
    from tokenfeed.server.ingest.__main__ import main

    install(pytest.MonkeyPatch(), lambda text: sys.argv[1] in text)
    sys.exit(main(sys.argv[2:]))
