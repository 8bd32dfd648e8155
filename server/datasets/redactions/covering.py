"""Which tokens of the sources of a stream are redacted or deleted, prepared for its rows.

Pure arrays. All files of all sources are one line of tokens here, and what is redacted or deleted
on it are ascending segments. So one search finds what a thousand spans hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import LimitExceeded
from tokenfeed.sampling.packing import ranges
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Numbers, Spans

from .ranges import RedactionList

DELETED = -1
"""In place of a fill: the token was erased, and no redaction replaces it."""
_UNTOUCHED = -2
_BEYOND = np.iinfo(np.int64).max
_SEGMENT_BLOCKS_BITS = 1
"""Two to four blocks for each segment. To search all segments for a span takes 77 ns among 10,000,
and 17 ns if the search begins with a block. 2 shared cores, 2026-11."""
RANGES_MAX = 1 << 22
"""Of all lists of a stream, each counted once for all sources that have the same ones in force.
About 200 MB: a request of 64 KiB could name many more."""


class SourceLists(NamedTuple):
    """What applies to the rows of a source.

    shape: of its dataset.  lists: those in force, the latest last.  erased: whose tokens were
    erased from its files; None if none were.
    """

    shape: Shape
    lists: tuple[RedactionList, ...] = ()
    erased: RedactionList | None = None

    @property
    def layers(self) -> list[tuple[RedactionList, int]]:
        """Lists, and what becomes of their tokens; a later one decides where they overlap."""
        erased = [(self.erased, DELETED)] if self.erased is not None else []
        return [*erased, *((each, each.fill) for each in self.lists)]


class Hits(NamedTuple):
    """Parts of rows that are redacted or deleted: int64[n], ascending by row and token.

    row, span: their indices.  first, end: tokens within the row; no two overlap.  segment: index of
    the segment of the covering.  fill: the token that replaces these; DELETED if there is none.
    """

    row: Numbers
    span: Numbers
    first: Numbers
    end: Numbers
    segment: Numbers
    fill: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Covering:
    """The segments of all sources of a stream.

    source_bases: int64[sources], where the tokens of a source begin on the line.  first_files:
    int64[sources], index of its first file in file_bases.  file_bases: int64[files], where each
    file begins, counted from the first token of its source.  firsts, ends: int64[n + 1], fills:
    int64[n], of the segments, ascending; no token reaches the last entry of firsts and ends.
    block_bits: the line is cut into blocks of 2^block_bits tokens.  first_segments: int32[blocks],
    the first segment that ends behind the beginning of each.
    """

    source_bases: Numbers
    first_files: Numbers
    file_bases: Numbers
    firsts: Numbers
    ends: Numbers
    fills: Numbers
    block_bits: int
    first_segments: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sources: tuple[SourceLists, ...]) -> Covering:
        """Prepare the segments of each source.  Raises: LimitExceeded above RANGES_MAX.

        Sources with the same dataset and lists share their segments: a request may have thousands.
        """
        groups = {each: index for index, each in enumerate(dict.fromkeys(sources))}
        size = sum(len(each.ranges) for group in groups for each, _ in group.layers)
        if size > RANGES_MAX:
            problem = f"have {size} ranges in all, above the limit of this server, {RANGES_MAX}"
            raise LimitExceeded("redactions", problem)
        shapes = {group.shape: _starts(group.shape.token_counts) for group in groups}
        first_files = dict(
            zip(shapes, _starts([each.size for each in shapes.values()]), strict=True)
        )
        bases = _starts([group.shape.token_count for group in groups])
        parts = [
            _segments(group, shapes[group.shape], base)
            for group, base in zip(groups, bases.tolist(), strict=True)
        ]
        firsts, ends, fills = map(np.concatenate, zip(*parts, strict=True))
        token_count = sum(group.shape.token_count for group in groups)
        blocks_bits = fills.size.bit_length() + _SEGMENT_BLOCKS_BITS
        block_bits = max(0, token_count.bit_length() - blocks_bits)
        blocks = np.arange((token_count >> block_bits) + 1) << block_bits
        return cls(
            bases[[groups[each] for each in sources]],
            np.array([first_files[each.shape] for each in sources]),
            np.concatenate(list(shapes.values())),
            np.append(firsts, _BEYOND),
            np.append(ends, _BEYOND),
            fills,
            block_bits,
            ends.searchsorted(blocks, side="right").astype(np.int32),
        )

    @property
    def size(self) -> int:
        """How many segments, sources and files it has: what its memory is for."""
        return self.fills.size + self.source_bases.size + self.file_bases.size

    def hits(self, spans: Spans) -> Hits:
        """Return what is hit of the rows of spans."""
        begin = spans.token_offset
        if self.file_bases.size > 1:
            begin = begin + self.file_bases[self.first_files[spans.source] + spans.shard]
        if self.source_bases.size > 1:
            begin = begin + self.source_bases[spans.source]
        count = spans.row_tokens if spans.are_windows else spans.token_count
        at = self.first_segments[begin >> self.block_bits]
        behind = np.flatnonzero(self.ends[at] <= begin)
        at[behind] = self.ends.searchsorted(begin[behind], side="right")
        return self._hits_of(spans, begin, at, np.flatnonzero(self.firsts[at] < begin + count))

    def _hits_of(self, spans: Spans, begin: Numbers, at: Numbers, hit: Numbers) -> Hits:
        """begin: where spans begin.  at: the first segment that ends behind that.  hit: the indices
        of the spans that it begins in.
        """
        begins, firsts = begin[hit], at[hit]
        ends = begins + (spans.row_tokens if spans.are_windows else spans.token_count[hit])
        counts = self.firsts.searchsorted(ends) - firsts
        row, shift = hit, -begins  # from the place on the line to that in the row
        if not spans.are_windows:
            row, places = spans.row_of_span[hit], spans.places_in_row[hit]
            shift += places
        segment, owner = ranges(firsts, counts)
        span, row, begins, ends, shift = (each[owner] for each in (hit, row, begins, ends, shift))
        return Hits(
            row,
            span,
            np.maximum(self.firsts[segment], begins) + shift,
            np.minimum(self.ends[segment], ends) + shift,
            segment,
            self.fills[segment],
        )

    def in_file(self, segment: int, source: int, shard: int) -> tuple[int, int]:
        """Return first and end token of a segment of a file, within it."""
        base = self.source_bases[source] + self.file_bases[self.first_files[source] + shard]
        return int(self.firsts[segment] - base), int(self.ends[segment] - base)


def _segments(group: SourceLists, file_bases: Numbers, base: int) -> tuple[Numbers, ...]:
    """Return firsts, ends and fills of a source whose tokens begin at base."""
    layers = [
        (
            file_bases[each.ranges.files] + each.ranges.first_tokens + base,
            file_bases[each.ranges.files] + each.ranges.end_tokens + base,
            fill,
        )
        for each, fill in group.layers
        if len(each.ranges)
    ]
    if not layers:
        return (np.empty(0, dtype=np.int64),) * 3
    bounds = np.unique(np.concatenate([side for *sides, _ in layers for side in sides]))
    fills = np.full(bounds.size, _UNTOUCHED)
    for firsts, ends, fill in layers:
        place = firsts.searchsorted(bounds, side="right") - 1
        fills[(place >= 0) & (ends[place] > bounds)] = fill
    # Behind the last bound there is nothing.
    kept = np.flatnonzero(fills != _UNTOUCHED)
    return bounds[kept], bounds[kept + 1], fills[kept]


def _starts(sizes: Sequence[int] | Numbers) -> Numbers:
    """Return where parts of these sizes begin, end to end."""
    counts = np.array(sizes, dtype=np.int64)
    return np.cumsum(counts) - counts
