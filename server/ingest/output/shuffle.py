"""The order in which documents are written: as they come, or shuffled within groups.

The permutation of a group depends only on the seed and on the number of documents before the group,
so a run can resume after any group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..tokenize.encoding import EncodedUnit, concat
from ..units import SourceOffset, Strings, Unit

BUFFER_TOKENS_MAX = 1 << 24
"""A group also ends at this many tokens, because of long documents."""
BUFFER_DOCUMENTS_MAX = 1 << 20
_PERMUTED_TOKENS = 1 << 20
Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Documents in the order in which they are written.

    part: the documents.  then: where to resume once they are written.
    """

    part: EncodedUnit
    then: SourceOffset


def skip_documents(
    parts: Iterable[tuple[Unit, EncodedUnit]], count: int
) -> Iterator[tuple[Unit, EncodedUnit, int]]:
    """Yield parts without the first `count` documents.

    Yields: unit, the rest of its part, and how many documents were dropped from it.
    """
    for unit, part in parts:
        dropped = min(count, part.lengths.size)
        count -= dropped
        yield unit, piece(part, dropped, part.lengths.size) if dropped else part, dropped


def shuffled(
    parts: Iterable[tuple[Unit, EncodedUnit, int]], buffer_documents: int, seed: int, documents: int
) -> Iterator[DocumentBatch]:
    """Yield groups of documents, each shuffled.

    parts: as `skip_documents` yields them.  documents: how many were written before.
    A document in several parts is a text file. It is not shuffled.
    """
    waiting: list[EncodedUnit] = []
    count = tokens = 0
    then = None

    def full(then: SourceOffset) -> DocumentBatch:
        nonlocal documents, count, tokens
        everything = concat(waiting)
        waiting.clear()
        order = np.argsort(_keys(seed, documents, count), kind="stable")
        documents, count, tokens = documents + count, 0, 0
        return DocumentBatch(_permuted(everything, order), then)

    for unit, part, dropped in parts:
        if not (part.begins and part.ends):
            if waiting:
                yield full(unit.place)
            documents += part.ends
            yield DocumentBatch(part, unit.end)
            continue
        first = 0
        ends = np.cumsum(part.lengths)
        while first < part.lengths.size:
            begin = int(ends[first - 1]) if first else 0
            room = int(np.searchsorted(ends, begin + BUFFER_TOKENS_MAX - tokens, side="left")) + 1
            end = min(part.lengths.size, first + buffer_documents - count, max(room, first + 1))
            waiting.append(piece(part, first, end))
            count, tokens = count + end - first, tokens + int(ends[end - 1]) - begin
            first = end
            if count == buffer_documents or tokens >= BUFFER_TOKENS_MAX:
                is_all = first == part.lengths.size
                yield full(unit.end if is_all else unit.place._replace(documents=dropped + first))
        then = unit.end
    if waiting:
        assert then is not None
        yield full(then)


def piece(part: EncodedUnit, first: int, end: int) -> EncodedUnit:
    """Return the documents of a part from first to end."""
    ends = np.concatenate([[0], np.cumsum(part.lengths)])
    tokens = slice(int(ends[first]), int(ends[end]))
    return replace(
        part,
        tokens=part.tokens[tokens],
        lengths=part.lengths[first:end],
        is_val=part.is_val[first:end],
        mask=None if part.mask is None else part.mask[tokens],
        ids=None if part.ids is None else part.ids.part(first, end),
    )


def selected(part: EncodedUnit, which: npt.NDArray[np.bool_]) -> EncodedUnit:
    """Return the documents of a part that `which`, bool[d], selects, in their order."""
    return part if which.all() else _permuted(part, np.flatnonzero(which))


def _permuted(part: EncodedUnit, order: npt.NDArray[np.int64]) -> EncodedUnit:
    """Return the documents of a part that an order names, in that order."""
    ids = part.ids
    if ids is not None:
        data = _taken(ids.data, ids.sizes, order)
        ids = Strings(data, np.cumsum(ids.sizes[order]))
    return replace(
        part,
        tokens=_taken(part.tokens, part.lengths, order),
        lengths=part.lengths[order],
        is_val=part.is_val[order],
        mask=None if part.mask is None else _taken(part.mask, part.lengths, order),
        ids=ids,
    )


def _taken(
    values: npt.NDArray[Value], lengths: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> npt.NDArray[Value]:
    """Return the runs of values that an order names, in that order; copies a million at once.

    lengths: of the runs, which lie one after another.
    """
    firsts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    ends = np.cumsum(lengths)
    # Old position of a value minus its new one.
    shifts = firsts - (ends - lengths)
    taken = np.empty(int(ends[-1]) if ends.size else 0, values.dtype)
    first = 0
    while first < order.size:
        begin = int(ends[first] - lengths[first])
        last = int(np.searchsorted(ends, begin + _PERMUTED_TOKENS, side="right"))
        end = max(first + 1, last)
        here = slice(begin, int(ends[end - 1]))
        old = np.arange(here.start, here.stop) + np.repeat(shifts[first:end], lengths[first:end])
        taken[here] = values[old]
        first = end
    return taken


def _keys(seed: int, documents: int, count: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each of count documents.

    Raw output only: the methods of numpy that process it may change between versions.
    """
    bits = np.random.Philox(key=np.array([seed, documents], dtype=np.uint64))
    return np.atleast_1d(bits.random_raw(count))
