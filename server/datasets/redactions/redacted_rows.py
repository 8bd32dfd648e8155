"""Rows in which redacted tokens are replaced, and that say so in plane 53.

A row that needs an erased token is refused, unless a redaction that is in force replaces the token:
what lies on the disk there is not what the stream has.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import Deleted, StreamMismatch
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import REDACTED
from tokenfeed.stream.stream import Stream
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.row_block import Plane

from ...runtime.memo import Memo
from ...storage.store import RowStore, TokenStore
from .covering import DELETED, Covering, Hits, SourceLists
from .list_file import RedactionLists
from .ranges import RedactionList

TokenArray = npt.NDArray[np.unsignedinteger]

_SEGMENTS_KEPT = 1 << 23
"""Of all combinations of lists and datasets that are prepared: 350 MB at most."""


class RedactedDataset(Protocol):
    """What is needed of a dataset.  redactions: None if it cannot have any."""

    name: str
    store: TokenStore
    redactions: RedactionLists | None


class _SourceKey(NamedTuple):
    """What decides the segments of a source.

    shape: of its dataset.  list_hash: of the list that has all that is redacted.  erased_hash: of
    the list whose tokens were erased. None: there is none.
    """

    shape: Shape
    list_hash: bytes | None
    erased_hash: bytes | None


class Redactor:
    """Wraps stores for the streams that need it. Keeps what it prepares for the last of them.

    May be used from several threads at once.
    """

    def __init__(self) -> None:
        """Prepare nothing yet."""
        self._coverings = Memo[tuple[_SourceKey, ...], Covering](
            lambda covering: covering.size, _SEGMENTS_KEPT
        )

    def wrap(
        self,
        rows: RowStore,
        datasets: Sequence[RedactedDataset],
        stream: Stream,
        planes: Sequence[int] = (),
    ) -> Rows:
        """Return the rows of a stream as it has them: rows itself if nothing is redacted, erased,
        or requested of plane 53.

        rows: of the sources of the stream.  datasets: of each source.  stream: all its redactions
        are in force.  planes: that are requested.
        Raises: StreamMismatch if a dataset lacks a list; LimitExceeded.
        """
        hashes: dict[int, list[bytes]] = {}
        for each in stream.redactions:
            hashes.setdefault(each.source, []).append(each.list_hash)
        sources = tuple(
            _key_of(dataset, hashes.get(number, ()))
            for number, dataset in zip(stream.numbers, datasets, strict=True)
        )
        if REDACTED not in planes and not any(
            each.list_hash or each.erased_hash for each in sources
        ):
            return rows
        covering = self._coverings.get(sources, partial(_covering, sources, datasets))
        return RedactedRows(rows, covering, datasets)


def _key_of(dataset: RedactedDataset, list_hashes: Sequence[bytes]) -> _SourceKey:
    """list_hashes: of a source.  Raises: StreamMismatch if the dataset lacks one of them."""
    lists, last = dataset.redactions, None
    if list_hashes:
        if lists is None:
            raise _lacking(dataset, list_hashes[0])
        try:
            last = lists.last_of(list_hashes)
        except KeyError as lacking:
            raise _lacking(dataset, lacking.args[0]) from None
    erased = lists.erased if lists is not None else None
    return _SourceKey(dataset.store.shape, last, erased.hash if erased is not None else None)


def _covering(sources: Sequence[_SourceKey], datasets: Sequence[RedactedDataset]) -> Covering:
    """Prepare segments.  Raises: StreamMismatch, LimitExceeded."""
    found = {
        one: SourceLists(
            one.shape,
            () if one.list_hash is None else (_list_of(dataset, one.list_hash),),
            None if one.erased_hash is None else _list_of(dataset, one.erased_hash),
        )
        for one, dataset in dict(zip(sources, datasets, strict=True)).items()
    }
    return Covering.of(tuple(found[one] for one in sources))


def _list_of(dataset: RedactedDataset, list_hash: bytes) -> RedactionList:
    found = dataset.redactions.find(list_hash) if dataset.redactions is not None else None
    if found is None:
        raise _lacking(dataset, list_hash)
    return found


def _lacking(dataset: RedactedDataset, list_hash: bytes) -> StreamMismatch:
    problem = f"dataset {dataset.name!r} has no list {list_hash.hex()} here"
    return StreamMismatch("redactions", f"{problem}; copy its list file to this server")


def are_same(one: Rows, other: Rows) -> bool:
    """Return whether two results of a `Redactor.wrap` redact and refuse the same tokens."""
    if isinstance(one, RedactedRows) and isinstance(other, RedactedRows):
        first, second = one.covering, other.covering
        # One that was dropped, and prepared again, is another object.
        return first is second or (
            np.array_equal(first.firsts, second.firsts)
            and np.array_equal(first.ends, second.ends)
            and np.array_equal(first.fills, second.fills)
        )
    return one is other


class RedactedRows:
    """The rows of a RowStore, redacted. For all else a reader asks that store itself.

    What is redacted is found for thousands of rows at once, as they are planned (`Spans.whole`):
    for each frame by itself it took 65 us of 350. 10,000 ranges, 2 shared cores, 2026-11.
    """

    def __init__(
        self, rows: RowStore, covering: Covering, datasets: Sequence[RedactedDataset]
    ) -> None:
        """rows: of the sources that covering was prepared for.  datasets: of each source."""
        self._rows = rows
        self.covering = covering
        self._datasets = datasets
        self._found: _RowHits | None = None
        """Of the rows that were planned last: all their frames need it, for planes and tokens."""

    def gather(self, spans: Spans, tokens: TokenArray, patient: bool = True) -> None:
        """Like `RowStore.gather`, with the fill in place of redacted tokens.

        Raises: Deleted too, with the first row that needs deleted tokens.
        """
        found, first_row = self._found_of(spans), spans.whole.first_row
        first, end = found.bounds[first_row], found.bounds[first_row + len(spans)]
        at = bisect_left(found.deleted, first)
        if at < len(found.deleted) and found.deleted[at] < end:
            raise self._error_of(found, found.deleted[at])
        self._rows.gather(spans, tokens, patient)
        line, begin = tokens.reshape(-1), first_row * spans.row_tokens
        for hit in range(first, end):
            line[found.firsts[hit] - begin : found.ends[hit] - begin] = found.fills[hit]

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        """Like `RowStore.gather_planes`, with plane 53; the others are those of the corpus. Rows
        with deleted tokens have planes, but no tokens.
        """
        if REDACTED not in planes:
            return self._rows.gather_planes(spans, planes, patient)
        others = [kind for kind in planes if kind != REDACTED]
        found = list(self._rows.gather_planes(spans, others, patient))
        insort(found, self.marks(spans), key=lambda plane: plane.kind)
        return tuple(found)

    def marks(self, spans: Spans) -> Plane:
        """Return plane 53 of rows, without reading any token; also of those that need erased ones,
        which are not marked.
        """
        first_row = spans.whole.first_row
        return self._found_of(spans).plane[first_row : first_row + len(spans)]

    def deleted(self, spans: Spans) -> list[list[tuple[int, int]]]:
        """Return the erased tokens of each row that no redaction replaces, [first, end) within it;
        without reading any token.
        """
        found, first_row = self._found_of(spans), spans.whole.first_row
        rows: list[list[tuple[int, int]]] = [[] for _ in range(len(spans))]
        first, end = found.bounds[first_row], found.bounds[first_row + len(spans)]
        of_these = slice(bisect_left(found.deleted, first), bisect_left(found.deleted, end))
        for hit in found.deleted[of_these]:
            row = int(found.hits.row[hit])
            begin, last = int(found.hits.first[hit]), int(found.hits.end[hit])
            spans_of_row = rows[row - first_row]
            if spans_of_row and spans_of_row[-1][1] == begin:  # of two pieces that touch
                begin = spans_of_row.pop()[0]
            spans_of_row.append((begin, last))
        return rows

    def _found_of(self, spans: Spans) -> _RowHits:
        """Return what is redacted of all the rows that spans are a part of."""
        whole, found = spans.whole.spans, self._found
        if found is None or found.spans is not whole:
            found = self._found = _found_in(whole, self.covering.hits(whole))
        return found

    def _error_of(self, found: _RowHits, place: int) -> Deleted:
        """Return the error of a hit.  place: its index."""
        span, segment = int(found.hits.span[place]), int(found.hits.segment[place])
        source, shard = int(found.spans.source[span]), int(found.spans.shard[span])
        dataset = self._datasets[source]
        return Deleted.of(
            dataset.name,
            os.path.basename(dataset.store.shards[shard].path),
            *self.covering.in_file(segment, source, shard),
            row=int(found.hits.row[place]),
        )


Rows = RowStore | RedactedRows
"""The rows of a stream as it has them: what gathers them and their planes."""


class _RowHits(NamedTuple):
    """What is redacted or deleted of rows, as lists: of a frame only a few entries are needed.

    plane: 53, of all rows.  bounds: row r has the hits [bounds[r], bounds[r + 1]).  firsts, ends:
    tokens of each hit, counted through all rows.  fills: of each.  deleted: those without a fill.
    """

    spans: Spans
    hits: Hits
    plane: Plane
    bounds: list[int]
    firsts: list[int]
    ends: list[int]
    fills: list[int]
    deleted: list[int]


def _found_in(spans: Spans, hits: Hits) -> _RowHits:
    begins = hits.row * spans.row_tokens
    return _RowHits(
        spans,
        hits,
        _redacted(len(spans), hits),
        hits.row.searchsorted(np.arange(len(spans) + 1)).tolist(),
        (begins + hits.first).tolist(),
        (begins + hits.end).tolist(),
        hits.fill.tolist(),
        np.flatnonzero(hits.fill == DELETED).tolist(),
    )


def _redacted(row_count: int, hits: Hits) -> Plane:
    """Return plane 53 of rows."""
    kept = hits.fill != DELETED
    if not kept.all():
        hits = Hits(*(each[kept] for each in hits))
    return redacted_runs.plane_of(row_count, hits.row, hits.first, hits.end)
