"""Tokenizers, text -> token ids: a Hugging Face tokenizer.json, or bytes, for tests and trials.

What a tokenizer.json means is what the package `tokenizers` makes of it. Another engine may encode
(engine.py says when), and gives the same ids.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.commands.decoding import BYTES, END_OF_BYTES, tokenizer_path
from tokenfeed.errors import InvalidRequest

TOKENIZERS, FASTOKENS = "tokenizers", "fastokens"
FASTOKENS_VERSION = "0.3.5"
"""The only one that is used: the one that was compared (docs/decisions/0012)."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer before it is loaded, to be sent to workers.

    name: of its file, with unusual characters replaced.  content: the file; b"" for bytes.
    parses_special: whether special tokens written in text become those tokens, not plain text.
    engine: the package that encodes text.  version: of the package tokenizers, whose ids these are;
    "" for any.
    """

    name: str
    content: bytes
    parses_special: bool = False
    engine: str = TOKENIZERS
    version: str = ""

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
    def is_bytes(self) -> bool:
        """Whether bytes are the tokens."""
        return self.name == BYTES and not self.content

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
    if tokenizer_file.is_bytes:
        return _Bytes()
    reference = _HuggingFace(tokenizer_file)
    if tokenizer_file.engine == FASTOKENS and installed(FASTOKENS) == FASTOKENS_VERSION:
        return FastTokenizer(reference, load_fastokens(tokenizer_file))
    return reference


def installed(package: str) -> str:
    """Return the version of a package, "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


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

        if tokenizer_file.version not in ("", found := installed(TOKENIZERS)):
            problem = f"tokenizers {found} is installed here, and {tokenizer_file.version} where "
            raise InvalidRequest("--tokenizer", f"{problem}the ingest began; install the same")
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
        self.splits_special = not tokenizer_file.parses_special
        self._tokenizer.encode_special_tokens = self.splits_special
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


class FastTokenizer(_HuggingFace):
    """Encodes by fastokens, and does all else by tokenizers.

    reference: the same tokenizer in the package tokenizers.
    """

    def __init__(self, reference: _HuggingFace, engine: Any) -> None:
        """engine: what `load_fastokens` returns."""
        self.__dict__.update(vars(reference))
        self.reference = reference
        self._engine = engine

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        """Return what `Tokenizer.encode` says.  Raises: ValueError."""
        try:
            ids, ends = self._engine.encode_batch_flat(
                list(texts), split_special_tokens=self.splits_special
            )
        except Exception:  # noqa: BLE001 - whatever a library raises: tokenizers has the last word
            return self.reference.encode(texts)
        places = np.frombuffer(ends, "<u8").astype(np.int64)
        return np.frombuffer(ids, "<u4").astype(token_dtype(self)), places[1:] - places[:-1]


def load_fastokens(tokenizer_file: TokenizerFile) -> Any:
    """Return the tokenizer of fastokens, without what `_HuggingFace` switches off.

    Raises: ImportError, ValueError.
    """
    import fastokens

    content = json.loads(tokenizer_file.content)
    for name in ("truncation", "padding", "post_processor"):
        content[name] = None
    content["model"]["dropout"] = None
    return fastokens.Tokenizer.from_json_str(json.dumps(content))
