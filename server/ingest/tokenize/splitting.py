"""Splits long text where none of its tokens change.

A tokenizer splits text before it searches for tokens, and the result at one position depends on the
text around it. So a split is accepted only if the text around it has the same tokens with and
without the split. After a word this holds for nearly every tokenizer. Tokenizers that add something
before each text allow no split at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

PIECE_CHARS = 1 << 20
"""Minimum length of a piece, except for the last one: half a second of work."""
PIECE_CHARS_MAX = 1 << 22
"""Maximum length of a piece: a tokenizer needs some 200 MB for it."""
CONTEXT_CHARS = 4099
_CONTEXTS_CHARS = (1021, CONTEXT_CHARS)
"""Text on either side of a split that has to keep its tokens. The numbers are primes, so that both
contexts of repetitive text begin at different parts of what repeats.
"""
_SEARCH_CHARS = 1 << 16
_TRIES = 32

_AFTER_WORD = (re.compile(r"(?<=\w)(?=\s)"), re.compile(r"(?<=\w)(?=\W)"))


class CannotSplit(ValueError):
    """Text is too long for the tokenizer, and cannot be split without changing its tokens."""


Encode = Callable[[Sequence[str]], Sequence[Iterable[int]]]


def split_text(blocks: Iterator[str], encode: Encode) -> Iterator[str]:
    """Yield text in pieces whose tokens, one after another, are those of the whole text.

    blocks: the text.  encode: texts -> their tokens.
    Where a piece ends depends on the text from its beginning on, not on the blocks.
    Raises: CannotSplit if a piece would have more than PIECE_CHARS_MAX characters.
    """
    text, low = "", PIECE_CHARS
    is_all = False
    while True:
        while not is_all and len(text) < low + _SEARCH_CHARS + CONTEXT_CHARS:
            block = next(blocks, None)
            is_all, text = block is None, text + (block or "")
        if len(text) < low + _SEARCH_CHARS + CONTEXT_CHARS:
            if text:
                yield text
            return
        cut = _split_position(text, low, encode)
        if cut is None and low >= PIECE_CHARS_MAX:
            raise CannotSplit(f"no place to cut it in {PIECE_CHARS_MAX:,} characters")
        elif cut is None:
            low *= 2
        else:
            yield text[:cut]
            text, low = text[cut:], PIECE_CHARS


def _split_position(text: str, low: int, encode: Encode) -> int | None:
    """Return where to split text, at or above low and within the search; None if nowhere."""
    high = low + _SEARCH_CHARS
    for pattern in _AFTER_WORD:
        for found in islice(pattern.finditer(text, low, high), _TRIES):
            if all(_may_split(text, found.start(), chars, encode) for chars in _CONTEXTS_CHARS):
                return found.start()
    return None


def _may_split(text: str, place: int, context_chars: int, encode: Encode) -> bool:
    before = text[max(0, place - context_chars) : place]
    behind = text[place : place + context_chars]
    whole, first, second = encode([before + behind, before, behind])
    return list(whole) == [*first, *second]
