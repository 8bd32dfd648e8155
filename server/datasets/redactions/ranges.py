"""Ranges of tokens of a dataset's files, and a list of those that are redacted. Knows no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.spans import Numbers
from tokenfeed.stream.identity import redaction_list_hash

from ...storage.bytes import PIECE_BYTES

Triple = tuple[int, int, int]
"""A range: number of its file, its first token, and the token behind its last one."""

_TOKEN_END = 1 << 63


@dataclass(frozen=True, slots=True, eq=False)
class TokenRanges:
    """Ranges of tokens. Always valid once constructed.

    files, first_tokens, end_tokens: int64[n]; ascending by file and token, each with at least one
    token; they neither overlap nor touch.
    Raises: ValueError, whose text follows "ranges".
    """

    files: Numbers
    first_tokens: Numbers
    end_tokens: Numbers

    def __post_init__(self) -> None:
        """Check all of them."""
        _require_ranges(self.files, self.first_tokens, self.end_tokens)
        same_file = self.files[1:] == self.files[:-1]
        apart = self.first_tokens[1:] > self.end_tokens[:-1]
        if not (((self.files[1:] > self.files[:-1]) | (same_file & apart)).all()):
            raise ValueError("have to ascend by file and token, and must neither overlap nor touch")

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> TokenRanges:
        """Merge ranges in any order, which may overlap.  ranges: (file, first token, end token)."""
        given = list(ranges)
        try:
            numbers = np.array(given) if given else np.empty((0, 3), dtype=np.int64)
        except ValueError:
            numbers = np.empty(0)
        # Not a given type: 0.5 would become 0.
        if numbers.dtype != np.int64 or numbers.ndim != 2 or numbers.shape[1] != 3:
            raise ValueError("have to be three whole numbers below 2^63 each")
        return cls.merged(*numbers.T)

    @classmethod
    def merged(cls, files: Numbers, first_tokens: Numbers, end_tokens: Numbers) -> TokenRanges:
        """Merge ranges in any order, which may overlap.  int64[n] each, as of a TokenRanges."""
        _require_ranges(files, first_tokens, end_tokens)
        if not files.size:
            return cls(files, first_tokens, end_tokens)
        ascending = np.lexsort((first_tokens, files))
        files, firsts, ends = (each[ascending] for each in (files, first_tokens, end_tokens))
        # All files as one sequence of tokens, with a gap between two of them.
        begins = np.flatnonzero(np.diff(files, prepend=-1))
        sizes = np.maximum.reduceat(ends, begins)
        if sum(sizes.tolist()) + sizes.size >= _TOKEN_END:
            raise ValueError("end at 2^63 tokens or later")
        bases = np.repeat(np.cumsum(sizes + 1) - sizes, np.diff(begins, append=files.size))
        reached = np.maximum.accumulate(ends + bases)
        is_new = np.ones(files.size, dtype=np.bool_)
        is_new[1:] = (firsts + bases)[1:] > reached[:-1]
        heads = np.flatnonzero(is_new)
        tails = np.append(heads[1:], files.size) - 1
        return cls(files[heads], firsts[heads], (reached - bases)[tails])

    def union(self, *others: TokenRanges) -> TokenRanges:
        """Return the tokens of these and of others."""
        every = (self, *others)
        return self.merged(
            np.concatenate([one.files for one in every]),
            np.concatenate([one.first_tokens for one in every]),
            np.concatenate([one.end_tokens for one in every]),
        )

    def __len__(self) -> int:
        """Return how many ranges there are."""
        return self.files.size

    @property
    def token_count(self) -> int:
        """How many tokens they have."""
        return int((self.end_tokens - self.first_tokens).sum())

    def triples(self) -> list[Triple]:
        """Return (file, first token, end token) of each."""
        columns = (self.files, self.first_tokens, self.end_tokens)
        return list(zip(*(each.tolist() for each in columns), strict=True))

    def of_file(self, file: int) -> TokenRanges:
        """Return those of one file."""
        own = slice(*np.searchsorted(self.files, (file, file + 1)))
        return TokenRanges(self.files[own], self.first_tokens[own], self.end_tokens[own])

    def cover(self, first_tokens: Numbers, end_tokens: Numbers) -> npt.NDArray[np.bool_]:
        """Return which other ranges of a file, int64[n] each, these have whole, bool[n]; these are
        of one file.
        """
        at = np.searchsorted(self.first_tokens, first_tokens, side="right") - 1
        return end_tokens <= np.append(self.end_tokens, -1)[at]  # -1: of one before all of these

    def contains(self, file: int, first_token: int, count: int) -> npt.NDArray[np.bool_]:
        """Return which tokens of a part of a file they have, bool[count]."""
        own = self.of_file(file)
        near = slice(
            np.searchsorted(own.end_tokens, first_token, side="right"),
            np.searchsorted(own.first_tokens, first_token + count),
        )
        changes = np.zeros(count + 1, dtype=np.int8)
        changes[np.maximum(own.first_tokens[near] - first_token, 0)] += 1
        changes[np.minimum(own.end_tokens[near] - first_token, count)] -= 1
        return np.cumsum(changes[:-1], dtype=np.int8).astype(np.bool_)

    def blocks(self, token_bytes: int) -> Iterator[Triple]:
        """Yield file, first byte and end byte of blocks of up to a MiB that have all of them, and
        what is between ranges that are close; bytes are counted from the first token of the file.
        """
        file, first, end = -1, 0, 0
        for next_file, first_token, end_token in self.triples():
            next_first, next_end = first_token * token_bytes, end_token * token_bytes
            if next_file == file and next_end - first <= PIECE_BYTES:
                end = next_end
                continue
            if end > first:
                yield file, first, end
            file, first, end = next_file, next_first, next_end
            while end - first > PIECE_BYTES:
                yield file, first, first + PIECE_BYTES
                first += PIECE_BYTES
        if end > first:
            yield file, first, end

    def require_within(self, token_counts: Numbers) -> None:
        """Raise ValueError unless they are within files.  token_counts: int64[files]."""
        beyond = self.files >= token_counts.size
        if beyond.any():
            file = int(self.files[beyond][0])
            raise ValueError(f"are in file {file}, but there are only {token_counts.size} files")
        wrong = np.flatnonzero(self.end_tokens > token_counts[self.files])
        if wrong.size:
            file, end = int(self.files[wrong[0]]), int(self.end_tokens[wrong[0]])
            count = int(token_counts[file])
            raise ValueError(f"end at token {end} of file {file}, which has only {count} tokens")


def _require_ranges(files: Numbers, first_tokens: Numbers, end_tokens: Numbers) -> None:
    if not files.shape == first_tokens.shape == end_tokens.shape == (files.size,):
        raise ValueError("have to be arrays of one size")
    wrong = (files < 0) | (first_tokens < 0) | (end_tokens <= first_tokens)
    if wrong.any():
        index = int(np.argmax(wrong))
        found = [int(each[index]) for each in (files, first_tokens, end_tokens)]
        raise ValueError(f"have no {found}: a file, a first token, and a later token at its end")


@dataclass(frozen=True, slots=True, eq=False)
class RedactionList:
    """Tokens that are redacted.

    fill: the token that replaces them.  hash: 32 bytes, by which a stream names the list.
    """

    fill: int
    ranges: TokenRanges
    hash: bytes

    @classmethod
    def of(cls, fill: int, ranges: TokenRanges) -> RedactionList:
        """Compute the hash."""
        return cls(fill, ranges, redaction_list_hash(fill, ranges.triples()))
