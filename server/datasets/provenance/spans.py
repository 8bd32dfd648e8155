"""Ranges of numbers; and spans of rows, compared with ranges of tokens: cut at documents, or
searched for some tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.packing import ranges
from tokenfeed.sampling.spans import Numbers

from .documents import FileDocuments


class NumberRanges(NamedTuple):
    """Samples, or places, in ranges: int64[n] each.

    firsts, lasts: the first and the last number of each range; they ascend, and do not overlap.
    before: how many numbers all ranges before each one have.
    """

    firsts: Numbers
    lasts: Numbers
    before: Numbers

    @classmethod
    def of(cls, firsts: Numbers, lasts: Numbers) -> NumberRanges:
        """Take ranges with a number in each."""
        counts = np.cumsum(lasts[:-1] - firsts[:-1] + 1)
        return cls(firsts, lasts, np.concatenate([np.zeros(min(1, firsts.size), np.int64), counts]))

    @classmethod
    def merged(cls, firsts: Numbers, ends: Numbers) -> NumberRanges:
        """Take ranges [first, end) that ascend by both, and may overlap or be empty."""
        firsts = np.maximum(firsts, np.concatenate([firsts[:1], ends[:-1]]))
        some = ends > firsts
        return cls.of(firsts[some], ends[some] - 1)

    @property
    def total(self) -> int:
        """How many numbers there are; may be 2^63."""
        if not self.firsts.size:
            return 0
        return int(self.before[-1]) + int(self.lasts[-1]) - int(self.firsts[-1]) + 1

    def at(self, indices: Numbers) -> Numbers:
        """Return the numbers of some indices among these: int64[n], each in [0, total)."""
        index = np.searchsorted(self.before, indices, side="right") - 1
        found: Numbers = self.firsts[index] + (indices - self.before[index])
        return found

    def have(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return whether each of some numbers is one of these: bool[n]."""
        if not self.firsts.size:
            return np.zeros(numbers.size, dtype=np.bool_)
        near = np.minimum(np.searchsorted(self.lasts, numbers), self.lasts.size - 1)
        found: npt.NDArray[np.bool_] = self.firsts[near] <= numbers
        return found & (numbers <= self.lasts[near])


class Parts(NamedTuple):
    """Parts of spans, ascending by span and token.

    span: int64[n], of which one.  first_token, end_token: int64[n], within its file.  of: int64[n],
    the range, or the document within its file; -1 if there is none.
    """

    span: Numbers
    first_token: Numbers
    end_token: Numbers
    of: Numbers


class Candidates(NamedTuple):
    """Which ranges may overlap spans: int64[spans] both, the first one, and how many."""

    first: Numbers
    counts: Numbers

    @classmethod
    def of(
        cls, firsts: Numbers, ends: Numbers, span_firsts: Numbers, span_ends: Numbers
    ) -> Candidates:
        """Compare ranges, which ascend and do not overlap, with spans."""
        first = np.searchsorted(ends, span_firsts, side="right")
        return cls(first, np.searchsorted(firsts, span_ends) - first)


def overlaps(
    firsts: Numbers,
    ends: Numbers,
    span_firsts: Numbers,
    span_ends: Numbers,
    near: Candidates,
) -> Parts:
    """Return the parts of spans that are in ranges.

    firsts, ends, span_firsts, span_ends, near: as of `Candidates.of`.
    """
    which, span = ranges(near.first, near.counts)
    first = np.maximum(firsts[which], span_firsts[span])
    end = np.minimum(ends[which], span_ends[span])
    has_some = first < end
    return Parts(span[has_some], first[has_some], end[has_some], which[has_some])


def cut(
    documents: FileDocuments, span_firsts: Numbers, span_ends: Numbers, near: Candidates
) -> Parts:
    """Return spans of a file, cut where a document begins or ends: all of their tokens."""
    of_documents = overlaps(
        documents.first_tokens, documents.end_tokens, span_firsts, span_ends, near
    )
    span, first, end, _ = of_documents
    # Tokens of no document: before each of these parts, and behind the last one of a span.
    is_first = np.diff(span, prepend=-1) > 0
    reached = np.where(is_first, span_firsts[span], np.roll(end, 1))
    before = np.flatnonzero(reached < first)
    last = span_firsts.copy()
    last[span] = end  # the last one of each span stays
    behind = np.flatnonzero(last < span_ends)
    found = [
        np.concatenate(columns)
        for columns in (
            (span, span[before], behind),
            (first, reached[before], last[behind]),
            (end, first[before], span_ends[behind]),
            (of_documents.of, np.full(before.size + behind.size, -1)),
        )
    ]
    ascending = np.lexsort((found[1], found[0]))
    return Parts(*(column[ascending] for column in found))
