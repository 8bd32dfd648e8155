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
from ..storage.bytes import StoredShard
from ..storage.formats import datatrove, olmo, raw
from ..storage.option_names import FORMAT, LOSS_MASK
from ..storage.store import TokenStore

_LOG = logging.getLogger("tokenfeed.server")
_SHARDS_MAX = 64
"""Of more, this many are looked at: 1,024 of 10,000 took two seconds."""
_SAMPLE_BYTES = 1 << 14
_TOKENS_MIN = 1024
"""Fewer tell nothing."""
_FLAGS_MIN = 32
"""Bytes of a mask. The last shard of a corpus may be shorter, and have ids of 0 and 1 alone."""
_NUMBERS_MIN = 256
"""Of a float type, without zeros."""
_HEADERLESS = (raw.NAME, olmo.NAME, datatrove.NAME)
"""Formats whose files have no header."""
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
        has_header = shard.layout.format not in _HEADERLESS
        greatest = 0
        for content in _samples(store, index):
            tokens = np.frombuffer(content, shard.layout.dtype)
            # Without a header, a mask of bytes may be taken for wider tokens.
            greatest = max(greatest, int(tokens.max()) if has_header else max(content))
            if not has_header and not format_is_given:
                _require_tokens(shard, content, tokens)
            if tokens.size >= _TOKENS_MIN and tokens.min() == tokens.max():
                constant.append(shard.path)
        others |= greatest > 1
        flags += [shard.path] if greatest == 1 and shard.layout.content_bytes >= _FLAGS_MIN else []
    if constant:
        _LOG.warning(
            "one value dataset=%s files=%d first=%s: thousands of tokens in a row are the same",
            store.name,
            len(set(constant)),
            log_safe_name(constant[0]),
        )
    if flags and others and not format_is_given:
        problem = "holds nothing but 0 and 1 in all that was looked at, as a mask does, and other "
        problem += f"files of the dataset hold tokens; leave it out, or pass it as {LOSS_MASK}"
        raise InvalidCorpus(flags[0], problem, LOSS_MASK)


def _samples(store: TokenStore, index: int) -> Iterator[bytes]:
    """Yield the beginning of a file's tokens, and as much of the middle."""
    layout = store.shards[index].layout
    middle = layout.token_count // 2 * layout.dtype.itemsize
    for first in sorted({0, middle if layout.content_bytes > _SAMPLE_BYTES else 0}):
        yield store.files.read(index, first, min(_SAMPLE_BYTES, layout.content_bytes - first))


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
        option = FORMAT.to("raw")
        problem = f"has no known header, and holds {found}; pass {option} if it is tokens"
        raise InvalidCorpus(shard.path, problem, option)


def _floats(content: bytes) -> str:
    """Return which floating-point numbers bytes are; "" if they are none.

    The exponents of a file of numbers are within a small range. Besides, both signs of numbers of
    16 bits occur; and the lowest bits of wider ones are as good as random, or all 0, if they were
    made from narrower ones. Tokens have neither property.
    """
    for name, word, bits, low, high in (
        ("float64", "<u8", 52, 900, 1150),
        ("float32", "<u4", 23, 64, 190),
        ("bfloat16", "<u2", 7, 96, 140),
        ("float16", "<u2", 10, 1, 20),
    ):
        words = np.frombuffer(content[: len(content) // 8 * 8], word)
        # Numbers that are exactly 0 are frequent in some arrays.
        words = words[words != 0]
        if words.size < _NUMBERS_MIN:
            continue
        top = words.dtype.itemsize * 8 - 1
        exponents = (words >> words.dtype.type(bits)) & words.dtype.type((1 << (top - bits)) - 1)
        if ((exponents >= low) & (exponents <= high)).mean() <= 0.99:
            continue
        if top < 16:
            if 0.2 < (words >> words.dtype.type(top)).mean() < 0.8:
                return name
            continue
        # The lower half of a float64 is not a float32.
        lowest = [words >> words.dtype.type(shift) for shift in range(0, max(16, top - 31), 16)]
        is_noise = all(_is_noise(word.astype("<u2")) for word in lowest)
        # Of float64 that were float32; of float32 that were narrower, or ids below 2^17.
        are_zeros = not (words & words.dtype.type((1 << (29 if top == 63 else 7)) - 1)).any()
        if is_noise or are_zeros:
            return name
    return ""


def _is_noise(words: Words) -> bool:
    """Return whether uint16 are as good as random: as many of the 2^16 values occur."""
    expected = -np.expm1(-words.size / (1 << 16)) * (1 << 16)
    return bool(np.unique(words).size > 0.97 * expected and words.max() > 65_000)
