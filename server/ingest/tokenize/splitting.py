"""Where long text may be cut without any of its tokens changing.

A tokenizer splits text before it looks for tokens, and what it does at one place depends on what
stands around it. A cut is taken only where the tokens of its surroundings are the same with it and
without; between a word and what follows it that is so for nearly every tokenizer. Some cannot be
cut at all: those that put something before each text that they are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

PIECE_CHARS = 1 << 20
"""A piece is at least so long, unless it is the last: half a second of work."""
PIECE_CHARS_MAX = 1 << 22
"""And at most so long: what a tokenizer remembers of it takes some 200 MB."""
CONTEXT_CHARS = 4099
_CONTEXTS_CHARS = (1021, CONTEXT_CHARS)
"""On either side of a cut, all of which has to keep its tokens. Primes: text that repeats itself
does not begin with the same part of it in both.
"""
_SEARCH_CHARS = 1 << 16
_TRIES = 32

_AFTER_WORD = (re.compile(r"(?<=\w)(?=\s)"), re.compile(r"(?<=\w)(?=\W)"))


class CannotSplit(ValueError):
    """Text is too long for the tokenizer, and has no place where it may be cut."""


Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


def split_text(blocks: Iterator[str], encode: Encode) -> Iterator[str]:
    """Yield text in pieces whose tokens, one after another, are those of all of it.

    blocks: the text.  encode: texts -> their tokens.
    Where a piece ends depends on the text from its beginning on, not on the blocks.
    Raises: NoPlaceToCut if a piece would have more than PIECE_CHARS_MAX characters.
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
        cut = _place_to_cut(text, low, encode)
        if cut is None and low >= PIECE_CHARS_MAX:
            raise CannotSplit(f"no place to cut it in {PIECE_CHARS_MAX:,} characters")
        elif cut is None:
            low *= 2
        else:
            yield text[:cut]
            text, low = text[cut:], PIECE_CHARS


def _place_to_cut(text: str, low: int, encode: Encode) -> int | None:
    """Return a place at or above low, within the search, where text may be cut; None if it has
    none.
    """
    high = low + _SEARCH_CHARS
    for pattern in _AFTER_WORD:
        for found in islice(pattern.finditer(text, low, high), _TRIES):
            if all(_may_cut(text, found.start(), chars, encode) for chars in _CONTEXTS_CHARS):
                return found.start()
    return None


def _may_cut(text: str, place: int, context_chars: int, encode: Encode) -> bool:
    before = text[max(0, place - context_chars) : place]
    behind = text[place : place + context_chars]
    whole, first, second = encode([before + behind, before, behind])
    return list(whole) == [*first, *second]
