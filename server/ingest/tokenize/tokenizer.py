"""The tokenizer: text -> token ids. A Hugging Face tokenizer.json, or bytes, to try things out."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenfeed.errors import InvalidRequest

BYTES = "bytes"
"""Name of the tokenizer that takes each byte of UTF-8 for a token."""
END_OF_BYTES = "<|endoftext|>"
"""The one special token that it has: 256."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """Which tokenizer: small enough to be sent to whoever encodes.

    name: of its file, more or less.  content: its tokenizer.json; b"" for bytes.  parses_special:
    whether special tokens written in text stand for themselves; else they are text like any other.
    """

    name: str
    content: bytes
    parses_special: bool = False

    @classmethod
    def read(cls, path: str, *, parses_special: bool) -> TokenizerFile:
        """Return what a path, or the word "bytes", stands for.  Raises: InvalidRequest."""
        if path == BYTES:
            if parses_special:
                raise InvalidRequest("--parse-special-tokens", "bytes have none to parse")
            return cls(BYTES, b"", parses_special)
        try:
            if not os.path.isfile(path):
                raise InvalidRequest("--tokenizer", f"{path} is no file")
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise InvalidRequest("--tokenizer", f"{path}: {error.strerror}") from error
        # It stands in files of lines and of UTF-8.
        name = re.sub(r"[^\w.+-]", "_", os.path.basename(path))
        return cls(name, content, parses_special)

    @property
    def sha256(self) -> str:
        """Of its content, in hex."""
        return hashlib.sha256(self.content).hexdigest()


class Tokenizer(Protocol):
    """What both kinds offer.  vocab_size: its greatest id, and one."""

    vocab_size: int

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of each text, nothing added before or after.  Raises: ValueError."""
        ...

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, None if there is none."""
        ...


@functools.lru_cache(maxsize=2)
def load_tokenizer(tokenizer_file: TokenizerFile) -> Tokenizer:
    """Return the tokenizer, one for each process.  Raises: InvalidRequest."""
    if tokenizer_file.name == BYTES and not tokenizer_file.content:
        return _Bytes()
    return _HuggingFace(tokenizer_file)


def token_dtype(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest of uint16 and uint32 that holds its ids."""
    return np.dtype("<u2") if tokenizer.vocab_size <= 1 << 16 else np.dtype("<u4")


class _Bytes:
    vocab_size = 257

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return [text.encode() for text in texts]

    def token_id(self, text: str) -> int | None:
        return 256 if text == END_OF_BYTES else None


class _HuggingFace:
    def __init__(self, tokenizer_file: TokenizerFile) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_file.content.decode())
        except Exception as error:  # the library raises Exception itself
            problem = f"{tokenizer_file.name} cannot be read as a tokenizer.json: {error}"
            raise InvalidRequest("--tokenizer", problem) from error
        # A tokenizer.json may say that texts are cut at 512 tokens, or filled up, or that merges
        # are left out by chance, as for a training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        self._tokenizer.encode_special_tokens = not tokenizer_file.parses_special
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"cannot be encoded: {error}") from error
        return [encoding.ids for encoding in found]

    def token_id(self, text: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(text)
        return found
