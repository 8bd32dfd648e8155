"""Locate: the ranges of tokens that rows are made of, cut at documents where these are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import LimitExceeded
from tokenfeed.sampling.mixture_v1 import locate as locate_samples
from tokenfeed.sampling.plan import PLAN_ROWS, place_count, plan, rows_at_once
from tokenfeed.sampling.spans import Numbers, Spans
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import AnyRequest

from .sources import SPAN_BYTES, Marks, Sources, messages, unmarked
from .spans import Candidates, cut

ROWS_MAX = min(1024, PLAN_ROWS)
"""In an answer; with PAGE_RANGES, about 10 ms of work: streams wait meanwhile."""
PAGE_RANGES = 2048
"""In an answer of several rows."""
RANGES_MAX = 65536
"""In one row."""
_RANGE_BYTES = 64
"""About the size of a range in an answer, without an id."""
_ANSWER_BYTES = 3 << 20
"""Most clients accept 4 MiB."""


def locate(sources: Sources, request: AnyRequest, marks: Marks = unmarked) -> pb.LocateResponse:
    """Return where the first rows of a request come from.

    request: checked as by GetBatch.
    Raises: LimitExceeded if the first row has too many ranges; CorpusChanged, Unreadable.
    """
    stream, shapes = sources.stream, sources.shapes
    count = min(request.row_count, ROWS_MAX, rows_at_once(request.stream, shapes))
    samples = request.position.samples(request.first_row, count)
    spans = plan(request.stream, shapes, samples)
    spans = spans[: sources.affordable(spans)]
    spans = spans[: _rows_within(sources, spans, samples)]
    ranges, marked = _ranges_of_rows(sources, spans), marks(spans)
    place_counts = [
        place_count(stream, source, shape) if source.order.HAS_EPOCHS else None
        for source, shape in zip(stream.sources, shapes, strict=True)
    ]
    places, own_samples = locate_samples(stream.stage, stream.seed, samples[: len(spans)])
    rows: list[pb.LocatedRow] = []
    used: set[tuple[int, int]] = set()
    size_bytes = 0
    columns = (samples[: len(spans)], places, own_samples, spans.padding)
    each = zip(*(column.tolist() for column in columns), ranges, *marked, strict=True)
    for sample, place, own_sample, padding, own_ranges, redacted, deleted in each:
        messages_of_row = [one.message for one in own_ranges]
        size_bytes += sum(_RANGE_BYTES + len(one.document.id) for one in messages_of_row)
        size_bytes += SPAN_BYTES * (len(redacted) + len(deleted))
        if rows and size_bytes > _ANSWER_BYTES:
            break
        epoch_places = place_counts[place]
        rows.append(
            pb.LocatedRow(
                sample=sample,
                source=stream.numbers[place],
                source_sample=own_sample,
                epoch=None if epoch_places is None else own_sample // epoch_places,
                ranges=messages_of_row,
                padding_tokens=padding,
                redacted=messages(redacted),
                deleted=messages(deleted),
            )
        )
        used.update((place, one.message.file) for one in own_ranges)
    return pb.LocateResponse(rows=rows, files=sources.files(used))


class _Range(NamedTuple):
    """A range as in an answer.  span: that it is a part of.  first_token: within its file."""

    span: int
    first_token: int
    message: pb.LocatedRange


def _groups(
    sources: Sources, spans: Spans
) -> Iterator[tuple[int, int, Numbers, Candidates | None]]:
    """Yield each source and file, the spans in it, ascending, and which of its documents they may
    overlap; None where documents are unknown.
    """
    order = np.lexsort((spans.shard, spans.source))
    source, shard = spans.source[order], spans.shard[order]
    borders = np.flatnonzero((np.diff(source) != 0) | (np.diff(shard) != 0)) + 1
    for group in np.split(order, borders):
        if not group.size:
            continue
        place, file, near = int(spans.source[group[0]]), int(spans.shard[group[0]]), None
        if sources.documents[place].are_known:
            known = sources.documents[place].of_file(file)
            firsts = spans.token_offset[group]
            ends = firsts + spans.token_count[group]
            near = Candidates.of(known.first_tokens, known.end_tokens, firsts, ends)
        yield place, file, group, near


def _rows_within(sources: Sources, spans: Spans, samples: Numbers) -> int:
    """Return how many rows have few enough ranges together, or one, found before any is made: a
    row of millions of tokens may have millions of documents.

    Raises: LimitExceeded if the first row has too many.
    """
    counts = np.ones_like(spans.shard)
    for place, file, group, near in _groups(sources, spans):
        if near is not None:
            # One for each document, and for what is before, between and behind them.
            has_all = sources.documents[place].of_file(file).have_all_tokens
            counts[group] = near.counts if has_all else 2 * near.counts + 1
    row_ends = np.cumsum(counts)[spans.first_span[1:] - 1]
    if len(spans) and row_ends[0] > RANGES_MAX:
        problem = f"sample {samples[0]} has {row_ends[0]} ranges of tokens, above the limit"
        raise LimitExceeded("context_length", f"{problem} of this server, {RANGES_MAX}")
    return max(int(np.searchsorted(row_ends, PAGE_RANGES, side="right")), min(1, len(spans)))


def _ranges_of_rows(sources: Sources, spans: Spans) -> list[list[_Range]]:
    """Return the ranges of each row, in order, cut at documents where these are known."""
    found: list[_Range] = []
    ends = spans.token_offset + spans.token_count
    for place, file, group, near in _groups(sources, spans):
        columns = group, spans.token_offset[group], ends[group], np.full(group.size, -1)
        described = {}
        if near is not None:
            documents = sources.documents[place]
            parts = cut(documents.of_file(file), spans.token_offset[group], ends[group], near)
            columns = group[parts.span], parts.first_token, parts.end_token, parts.of
            numbers = np.unique(parts.of[parts.of >= 0]).tolist()
            described = dict(zip(numbers, documents.described(file, numbers), strict=True))
        for span, first, end, number in zip(*(one.tolist() for one in columns), strict=True):
            message = pb.LocatedRange(
                file=file, first_token=first, end_token=end, document=described.get(number)
            )
            found.append(_Range(span, first, message))
    found.sort(key=lambda one: one[:2])
    rows: list[list[_Range]] = [[] for _ in range(len(spans))]
    row_of = spans.row_of_span.tolist()
    for one in found:
        rows[row_of[one.span]].append(one)
    return rows
