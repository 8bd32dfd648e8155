"""Token ids as text, for commands that print some."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..errors import InvalidRequest
from .extras import missing

BYTES = "bytes"
"""The tokenizer whose ids are the bytes of UTF-8, and one more for END_OF_BYTES."""
END_OF_BYTES = "<|endoftext|>"


def tokenizer_path(path: str) -> str:
    """Return the tokenizer.json of a folder of a tokenizer; any other path as it is."""
    return os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path


def decoder(tokenizer: str) -> Callable[[Sequence[int]], str]:
    """Return a function that turns token ids into text.

    tokenizer: path of a tokenizer.json or of its folder, or "bytes".
    Raises: InvalidRequest if it cannot be loaded; the function, if an id is not one of "bytes".
    """
    if tokenizer == BYTES:
        return _decode_bytes
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InvalidRequest("--tokenizer", missing(error, "tokenizer")) from None
    try:
        loaded = Tokenizer.from_file(tokenizer_path(tokenizer))
    except Exception as error:  # the library raises plain Exception
        raise InvalidRequest(
            "--tokenizer",
            f'{tokenizer} is neither "bytes" nor can it be read as a tokenizer.json: {error}',
        ) from error
    return lambda ids: str(loaded.decode(ids, skip_special_tokens=False))


def _decode_bytes(ids: Sequence[int]) -> str:
    if max(ids, default=0) > 256:
        problem = f"token {max(ids)} is not a token of bytes, which are 0 to 256"
        raise InvalidRequest("--tokenizer", problem)
    end = END_OF_BYTES.encode()
    content = b"".join(bytes((one,)) if one < 256 else end for one in ids)
    return content.decode(errors="replace")
