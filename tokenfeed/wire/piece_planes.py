"""The planes of rows of pieces that follow from the pieces alone: where they begin, and padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..sampling.spans import Spans
from ..stream.planes import DOCUMENT_STARTS, TOKEN_COUNTS
from .row_block import Plane

_ENTRY_BYTES = 4


def _document_starts(spans: Spans) -> Plane:
    """Return where the pieces of each row begin, without its first one.  spans: of pieces."""
    first = spans.first_span
    ends = np.cumsum(spans.token_count)
    begins = ends - spans.token_count
    within = begins - np.repeat(begins[first[:-1]], np.diff(first))
    within = np.delete(within, first[:-1])
    lengths = _ENTRY_BYTES * (np.diff(first) - 1)
    return Plane(DOCUMENT_STARTS, lengths.astype(np.uint32), within.astype("<u4").view(np.uint8))


def _token_counts(spans: Spans) -> Plane:
    """Return how many tokens of each row are from the corpus.  spans: of pieces."""
    content = (spans.row_tokens - spans.padding).astype("<u4").view(np.uint8)
    return Plane(TOKEN_COUNTS, np.full(len(spans), _ENTRY_BYTES, np.uint32), content)


OF_PIECES: Mapping[int, Callable[[Spans], Plane]] = {
    DOCUMENT_STARTS: _document_starts,
    TOKEN_COUNTS: _token_counts,
}
"""Kind of a plane -> the plane of the rows of spans that have pieces; docs/protocol.md, Planes."""
