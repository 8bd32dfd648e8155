"""The lengths of documents that benchmarks.packing packs: of texts, and drawn at random.

A document ends with one more token than its text has, as most token files have it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

LOG_NORMAL = {"web": (600.0, 1.0), "chat": (80.0, 0.7)}
"""Median in tokens, and standard deviation of the logarithm: pages of the web have a mean of 990
tokens, short exchanges one of 102.
"""


def drawn(kind: str, documents: int, seed: int = 1) -> Numbers:
    """Return lengths of one kind, log-normal, at least 2 tokens: int64[documents]."""
    median, sigma = LOG_NORMAL[kind]
    lengths = np.random.default_rng(seed).lognormal(math.log(median), sigma, documents)
    return np.maximum(np.rint(lengths), 2).astype(np.int64)


def of_files(folder: Path, tokenizer: Path) -> Numbers:
    """Return the lengths of the text files of a folder: int64[documents]."""
    paths = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    return _counted([path.read_text(errors="replace") for path in paths], tokenizer)


def of_speeches(path: Path, tokenizer: Path) -> Numbers:
    """Return the lengths of the parts of a text between empty lines: int64[documents]."""
    return _counted([part for part in path.read_text().split("\n\n") if part.strip()], tokenizer)


def _counted(texts: list[str], tokenizer: Path) -> Numbers:
    from tokenizers import Tokenizer

    encodings = Tokenizer.from_file(str(tokenizer)).encode_batch(texts, add_special_tokens=False)
    return np.array([len(encoding.ids) + 1 for encoding in encodings], np.int64)
