"""Context lengths that a run has one after another, as a user writes them, and how many rows a
batch has at each. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.stream import Stream

from ..runtime.arguments import amount, integer, shown


class Begin(NamedTuple):
    """Where something is asked for.

    first_sample, first_tokens: the sample, or the tokens of x before it (rounded up to a whole
    sample), in [0, 2^63); one of them is None.
    """

    first_sample: int | None = None
    first_tokens: int | None = None

    def sample(self, sample_at: Callable[[int], int]) -> int:
        """Return the sample.  sample_at: returns the one before which there are some tokens."""
        tokens = self.first_tokens
        return self.first_sample or 0 if tokens is None else sample_at(tokens)

    def is_before(self, stream: Stream, sample: int) -> bool:
        """Return whether it is before a sample of a stream."""
        if self.first_tokens is None:
            return (self.first_sample or 0) < sample
        return self.first_tokens < stream.tokens_before(sample)


class Length(NamedTuple):
    """A context length from a sample on.  context_length: T."""

    context_length: int
    begin: Begin

    def __str__(self) -> str:
        """Say it in words."""
        sample, tokens = self.begin
        where = f"sample {sample}" if tokens is None else f"{tokens} tokens"
        return f"{self.context_length} from {where} on"


def read_lengths(value: int | Mapping[int | str, int]) -> tuple[int, tuple[Length, ...]]:
    """Return the first context length, and those behind it.

    value: a context length, or several by the sample or the tokens where each is asked for, in
    ascending order: {0: 4096, "2e11 tokens": 32768}. One that is that before it changes nothing.
    Raises: InvalidRequest.
    """
    if not isinstance(value, Mapping):
        return integer("context_length", value), ()
    found = [_length(key, length) for key, length in value.items()]
    if not found or found[0].begin != Begin(0):
        problem = f"{shown(value)} does not begin at sample 0, as {{0: 4096, ...}} does"
        raise InvalidRequest("context_length", problem)
    for unit in zip(*(each.begin for each in found), strict=True):
        keys = [key for key in unit if key is not None]
        if sorted(set(keys)) != keys:
            raise InvalidRequest("context_length", f"{shown(value)} is not in ascending order")
    later = (now for one, now in pairwise(found) if now.context_length != one.context_length)
    return found[0].context_length, tuple(later)


def _length(key: int | str, value: int) -> Length:
    length = integer("context_length", value)
    if not isinstance(key, str):
        return Length(length, Begin(integer("context_length", key, 0, SAMPLE_END)))
    number, _, unit = key.strip().partition(" ")
    if unit.strip() not in ("samples", "tokens"):
        problem = f'{shown(key)} is no sample, and not written as "2e11 tokens" or "1e6 samples"'
        raise InvalidRequest("context_length", problem)
    found = amount("context_length", number, unit.strip())
    require_range("context_length", found, 0, SAMPLE_END)
    in_tokens = unit.strip() == "tokens"
    return Length(length, Begin(first_tokens=found) if in_tokens else Begin(found))


def require_uncounted(num_batches: int | None) -> None:
    """Raise InvalidRequest if batches are counted, of a run that has several context lengths."""
    if num_batches is not None:
        problem = "counts batches of one shape; omit it, and end the loop by its steps"
        raise InvalidRequest("num_batches", problem)


def require_whole_rows(lengths: Sequence[int], sizes: Mapping[int, int], first: int = 0) -> None:
    """Raise InvalidRequest as `batch_size_of` does.

    lengths, sizes: are those of a whole run.  first: counts the lengths that are read no more.
    """
    for place in range(first, len(lengths)):
        batch_size_of(lengths[: place + 1], sizes)


def batch_size_of(lengths: Sequence[int], sizes: Mapping[int, int]) -> int:
    """Return the rows of a batch of a rank at the last of some context lengths: those that the user
    said, or as many as have the tokens of the batches before.

    lengths: of the stages up to there.  sizes: what the user said, by context length; at least one.
    Raises: InvalidRequest if these tokens are no whole rows.
    """
    known = next((length for length in reversed(lengths) if length in sizes), next(iter(sizes)))
    found, rest = divmod(sizes[known] * known, lengths[-1])
    if rest or not found:
        problem = f"{sizes[known]} rows of {known} tokens are no whole rows of {lengths[-1]}"
        cure = (
            "pass a batch_size of whole rows of each length, or change_context_length one for this"
        )
        raise InvalidRequest("batch_size", f"{problem}; {cure}")
    return found
