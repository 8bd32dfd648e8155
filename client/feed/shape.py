"""How many rows a batch has at each context length of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenfeed.errors import InvalidRequest


def require_uncounted(num_batches: int | None) -> None:
    """Raise InvalidRequest if batches are counted, of a run that has several context lengths."""
    if num_batches is not None:
        problem = "counts batches of one shape; omit it, and end the loop by its steps"
        raise InvalidRequest("num_batches", problem)


def require_whole_rows(lengths: Sequence[int], sizes: Mapping[int, int]) -> None:
    """Raise InvalidRequest as `batch_size_of` does.  lengths, sizes: are those of a whole run."""
    for place in range(len(lengths)):
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
        raise InvalidRequest("batch_size", f"{problem}; pass a batch_size for this length")
    return found
