"""Context lengths that a run has one after another, as a user writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.stream import Stream

from ..runtime.arguments import amount, integer, shown
from .mixture.recipe import Length


def asked_at(length: Length, stream: Stream) -> int:
    """Return the sample that a context length is asked for at.  stream: has all those before it."""
    if length.first_tokens is None:
        return length.first_sample or 0
    return stream.sample_at(length.first_tokens)


def is_past(length: Length, stream: Stream, sample: int) -> bool:
    """Return whether a context length is asked for before a sample of a stream."""
    if length.first_tokens is None:
        return (length.first_sample or 0) < sample
    return length.first_tokens < stream.tokens_before(sample)


def read_lengths(value: int | Mapping[int | str, int]) -> tuple[int, tuple[Length, ...]]:
    """Return the first context length, and those behind it.

    value: a context length, or several by the sample or the tokens where each is asked for, in
    ascending order: {0: 4096, "2e11 tokens": 32768}.
    Raises: InvalidRequest.
    """
    if not isinstance(value, Mapping):
        return integer("context_length", value), ()
    found = [_length(key, length) for key, length in value.items()]
    if not found or found[0][1:] != (0, None):
        problem = f"{shown(value)} does not begin at sample 0, as {{0: 4096, ...}} does"
        raise InvalidRequest("context_length", problem)
    for name in ("first_sample", "first_tokens"):
        keys = [key for each in found if (key := getattr(each, name)) is not None]
        if sorted(set(keys)) != keys:
            raise InvalidRequest("context_length", f"{shown(value)} is not in ascending order")
    return found[0].context_length, tuple(found[1:])


def _length(key: int | str, value: int) -> Length:
    length = integer("context_length", value)
    if not isinstance(key, str):
        sample = integer("context_length", key)
        require_range("context_length", sample, 0, SAMPLE_END)
        return Length(length, sample, None)
    number, _, unit = key.strip().partition(" ")
    if unit.strip() not in ("samples", "tokens"):
        problem = f'{shown(key)} is no sample, and not written as "2e11 tokens" or "1e6 samples"'
        raise InvalidRequest("context_length", problem)
    found = amount("context_length", number, unit.strip())
    require_range("context_length", found, 0, SAMPLE_END)
    is_tokens = unit.strip() == "tokens"
    return Length(length, None if is_tokens else found, found if is_tokens else None)
