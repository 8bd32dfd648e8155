"""Tokenizers, text -> token ids: a Hugging Face tokenizer.json, or bytes, for tests and trials."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tokenfeed.commands.decoding import BYTES, END_OF_BYTES, tokenizer_path
from tokenfeed.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer before it is loaded, to be sent to workers.

    name: of its file, with unusual characters replaced.  content: the file; b"" for bytes.
    parses_special: whether special tokens written in text become those tokens, not plain text.
    """

    name: str
    content: bytes
    parses_special: bool = False

    @classmethod
    def read(cls, path: str, *, parses_special: bool) -> TokenizerFile:
        """Read a file, or the one that a folder has, or take the word "bytes".

        Raises: InvalidRequest.
        """
        if path == BYTES:
            if parses_special:
                raise InvalidRequest(
                    "--parse-special-tokens", "cannot be used with --tokenizer bytes; omit it"
                )
            return cls(BYTES, b"", parses_special)
        path = tokenizer_path(path)
        try:
            if not os.path.isfile(path):
                raise InvalidRequest(
                    "--tokenizer",
                    f"{path} is not a file; pass the path of a tokenizer.json, or bytes",
                )
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise InvalidRequest("--tokenizer", f"{path}: {error.strerror}") from error
        # The name is written into files that consist of lines of UTF-8.
        name = re.sub(r"[^\w.+-]", "_", os.path.basename(path))
        return cls(name, content, parses_special)

    @property
    def sha256(self) -> str:
        """Hash of its content, in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()


TokenIds = npt.NDArray[np.unsignedinteger]


class Tokenizer(ABC):
    """The interface of both kinds.  vocab_size: its largest id plus one."""

    vocab_size: int

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        """Return the ids of all texts, one text after another and with nothing added, in the dtype
        of `token_dtype`; and int64[n], how many each text has.  Raises: ValueError.
        """

    def encode_each(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the ids of each text.  Raises: ValueError."""
        ids, counts = self.encode(texts)
        return np.split(ids, np.cumsum(counts)[:-1])

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        """Return the ids of a text, and int64[n, 2], where the characters of each begin and end.
        Bytes of one character have the same.  Raises: ValueError.
        """

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, None if there is none."""


@functools.lru_cache(maxsize=2)
def load_tokenizer(tokenizer_file: TokenizerFile) -> Tokenizer:
    """Load a tokenizer; cached in each process.  Raises: InvalidRequest."""
    if tokenizer_file.name == BYTES and not tokenizer_file.content:
        return _Bytes()
    return _HuggingFace(tokenizer_file)


def token_dtype(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest of uint16 and uint32 that holds its ids."""
    return np.dtype("<u2") if tokenizer.vocab_size <= 1 << 16 else np.dtype("<u4")


class _Bytes(Tokenizer):
    vocab_size = 257

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        found = [text.encode() for text in texts]
        ids = np.frombuffer(b"".join(found), np.uint8).astype(token_dtype(self))
        return ids, np.fromiter(map(len, found), np.int64, len(found))

    def encode_with_offsets(self, text: str) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        sizes = [len(sign.encode()) for sign in text]
        firsts = np.repeat(np.arange(len(text), dtype=np.int64), sizes)
        return self.encode([text])[0], np.stack([firsts, firsts + 1], axis=1)

    def token_id(self, text: str) -> int | None:
        return 256 if text == END_OF_BYTES else None


class _HuggingFace(Tokenizer):
    def __init__(self, tokenizer_file: TokenizerFile) -> None:
        from tokenizers import Tokenizer, processors

        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_file.content.decode())
        except Exception as error:  # the library raises Exception itself
            problem = f"{tokenizer_file.name} cannot be read as a tokenizer.json: {error}"
            raise InvalidRequest("--tokenizer", problem) from error
        # A tokenizer.json may enable truncation, for example at 512 tokens, padding, or dropout,
        # which leaves out random merges during training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # It would add nothing here, but may leave the spaces before words out of their offsets.
        self._tokenizer.post_processor = processors.Sequence([])
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        self._tokenizer.encode_special_tokens = not tokenizer_file.parses_special
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"cannot be encoded: {error}") from error
        counts = np.fromiter(map(len, found), np.int64, len(found))
        ids = chain.from_iterable(encoding.ids for encoding in found)
        return np.fromiter(ids, token_dtype(self), int(counts.sum())), counts

    def encode_with_offsets(self, text: str) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"cannot be encoded: {error}") from error
        ids = np.array(found.ids, dtype=token_dtype(self))
        return ids, np.array(found.offsets, dtype=np.int64).reshape(-1, 2)

    def token_id(self, text: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(text)
        return found
