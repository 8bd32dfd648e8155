"""Looks at a sample of each file: is it tokens at all?

Formats decide by headers and names. A mask beside tokens, an array of floats, or a file that is
compressed in some way has neither, and would be served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

from ..runtime.exceptions import log_safe_name
from ..storage.formats import raw
from ..storage.store import StoredShard, TokenStore

_LOG = logging.getLogger("tokenfeed.server")
_SHARDS_MAX = 64
"""Of more, this many are looked at: 1,024 of 10,000 took two seconds."""
_SAMPLE_BYTES = 1 << 14
_TOKENS_MIN = 1024
"""Fewer tell nothing."""
_NAMED_RAW = (".bin", ".raw")
_ID_MAX = 1 << 24
"""Vocabularies have fewer ids."""

Words = npt.NDArray[np.unsignedinteger]


def require_plausible(store: TokenStore, format_is_given: bool) -> None:
    """Raise InvalidCorpus if a file cannot be tokens; warn of long runs of one value.

    format_is_given: whether the user has said what the files are.
    """
    chosen = np.random.default_rng(0).permutation(len(store.shards))[:_SHARDS_MAX]
    flags, others, constant = [], False, []
    for index in sorted(chosen.tolist()):
        shard = store.shards[index]
        limits: list[int] = []
        for content in _samples(store, index):
            tokens = np.frombuffer(content, shard.layout.dtype)
            limits += int(tokens.min()), int(tokens.max())
            if shard.layout.format == raw.NAME and not format_is_given:
                _require_tokens(shard, content, tokens)
            if tokens.size >= _TOKENS_MIN and limits[-1] == limits[-2]:
                constant.append(shard.path)
        is_flags = (min(limits), max(limits)) == (0, 1)
        others |= max(limits) > 1
        flags += [shard.path] if is_flags else []
    if constant:
        _LOG.warning(
            "one value dataset=%s files=%d first=%s: thousands of tokens in a row are the same",
            store.name,
            len(set(constant)),
            log_safe_name(constant[0]),
        )
    if flags and others and not format_is_given:
        problem = "holds nothing but 0 and 1 in all that was looked at, as a mask does, and other "
        problem += "files of the dataset hold tokens; leave it out, or pass it as --loss-mask"
        raise InvalidCorpus(flags[0], problem)


def _samples(store: TokenStore, index: int) -> Iterator[bytes]:
    """Yield the beginning of a file's tokens, and as much of the middle."""
    layout = store.shards[index].layout
    middle = layout.token_count // 2 * layout.dtype.itemsize
    for first in sorted({0, middle if layout.content_bytes > _SAMPLE_BYTES else 0}):
        yield store.read(index, first, min(_SAMPLE_BYTES, layout.content_bytes - first))


def _require_tokens(shard: StoredShard, content: bytes, tokens: npt.NDArray[np.integer]) -> None:
    """Raise InvalidCorpus if bytes that nothing says to be tokens are something else."""
    if tokens.size < _TOKENS_MIN:
        return
    found = _floats(content)
    if not shard.path.endswith(_NAMED_RAW) and not found:
        if tokens.dtype.itemsize > 2 and (tokens > _ID_MAX).mean() > 0.01:
            found = f"numbers up to {int(tokens.max()):,}, more than any vocabulary has"
        elif tokens.dtype.itemsize == 2 and _is_noise(tokens.view("<u2")):
            found = "bytes like those of a compressed file"
    if found:
        problem = f"has no known header, and holds {found}; pass --format raw if it is tokens"
        raise InvalidCorpus(shard.path, problem)


def _floats(content: bytes) -> str:
    """Return which floating-point numbers bytes are; "" if they are none.

    The exponents of a file of numbers are within a small range, and both signs occur; the lowest 16
    bits of float32 and float64 are as good as random. Tokens have neither property.
    """
    for name, word, bits, low, high in (
        ("float64", "<u8", 52, 900, 1150),
        ("float32", "<u4", 23, 64, 190),
        ("bfloat16", "<u2", 7, 96, 140),
        ("float16", "<u2", 10, 1, 20),
    ):
        words = np.frombuffer(content[: len(content) // 8 * 8], word)
        top = words.dtype.itemsize * 8 - 1
        exponents = (words >> words.dtype.type(bits)) & words.dtype.type((1 << (top - bits)) - 1)
        signs = (words >> words.dtype.type(top)).mean()
        is_range = ((exponents >= low) & (exponents <= high)).mean() > 0.99
        # The lower half of a float64 is not a float32.
        lowest = [words >> words.dtype.type(shift) for shift in range(0, top - 31, 16)] or [words]
        is_noise = top < 16 or all(_is_noise(word.astype("<u2")) for word in lowest)
        if is_range and 0.2 < signs < 0.8 and is_noise:
            return name
    return ""


def _is_noise(words: Words) -> bool:
    """Return whether uint16 are as good as random: as many of the 2^16 values occur."""
    expected = -np.expm1(-words.size / (1 << 16)) * (1 << 16)
    return bool(np.unique(words).size > 0.97 * expected and words.max() > 65_000)
