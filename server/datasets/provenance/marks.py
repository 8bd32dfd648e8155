"""Which tokens of rows are redacted or deleted, counted within each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tokenfeed.sampling.spans import Spans
from tokenfeed.v1 import provenance_pb2 as pb

RowSpans: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""Of each row, [first, end) of some of its tokens."""

SPAN_BYTES = 12
"""About the size of a TokenSpan in an answer."""


class RowMarks(NamedTuple):
    """Of each row: the tokens that redactions replace, and those that are deleted."""

    redacted: RowSpans
    deleted: RowSpans

    def counts(self) -> list[int]:
        """Return how many spans each row has."""
        each = zip(self.redacted, self.deleted, strict=True)
        return [len(redacted) + len(deleted) for redacted, deleted in each]


Marks: TypeAlias = Callable[[Spans], RowMarks]
"""Returns those of some rows."""


def unmarked(spans: Spans) -> RowMarks:
    """Return the marks of rows in which nothing is redacted or deleted."""
    nothing: RowSpans = [()] * len(spans)
    return RowMarks(nothing, nothing)


def messages(spans: Sequence[tuple[int, int]]) -> list[pb.TokenSpan]:
    """Return spans of a row as an answer has them."""
    return [pb.TokenSpan(first_token=first, end_token=end) for first, end in spans]
