"""Turns samples into spans of tokens, and does nothing else.

Pure: the same call returns the tokens of sample 288,000 in the server, in a test and in a notebook.
It knows only the token count of each file, so it can be tested with an imaginary corpus of ten
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRequest, SamplesExhausted
from ..stream.order import Order
from ..stream.stage import Source
from ..stream.stream import Stream
from .document_rows import DocumentRows, RowsKey
from .mixture_v1 import locate
from .orders import find
from .orders.blocks_v1 import BlocksOfFiles
from .orders.splitmix import Words
from .spans import Pieces, Spans

Numbers = npt.NDArray[np.int64]

PLAN_ROWS = 4096
"""Rows to plan at once: array arithmetic takes 42 (random) to 177 microseconds (shuffled) for 32
samples and 82 to 412 for 4,096. 2 shared cores, 2026-11; measured by `python -m
benchmarks.plan_rows`.
"""
_PLAN_PIECES = 1 << 16
"""The same for rows of pieces: 4,096 rows of short documents may have a million pieces."""
_PLACES_KEPT = 8
"""Size of an LRU cache. With 60,000 files, each entry is a megabyte."""


_FEW_SOURCES = 4
"""Up to this many sources, a call of each one's order is faster than one pass over all of them."""


class Places(NamedTuple):
    """The possible places of windows in a corpus: 0 to place_count - 1, file by file.

    place_count: of all files together.  ends, firsts: int64[files], end and first of the places
    of each file.  stride: tokens from one place of a file to the next.
    """

    place_count: int
    ends: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    stride: int


class Shape:
    """The input of a plan: the number of tokens of each file of a corpus.

    A window never crosses from one file into the next. File i of n_i tokens has n_i - T places
    where a window of an order without epochs may start, and floor((n_i - 1) / T) non-overlapping
    windows for one with epochs; a file shorter than T + 1 has neither. Where files were packed into
    rows of T + 1 tokens, each row is a window, and no other.
    """

    def __init__(self, token_counts: npt.NDArray[np.int64], row_tokens: int | None = None) -> None:
        """token_counts: int64[files], at least one.  row_tokens: at least 2, tokens of each row if
        files were packed into rows; divides each count.
        """
        self.token_counts = token_counts
        self.row_tokens = row_tokens
        self.token_count = int(token_counts.sum())
        self.longest_file_tokens = int(token_counts.max())
        none = _no_documents if row_tokens is None else _only_rows
        self.document_rows: Callable[[RowsKey], DocumentRows] = none
        """Returns the rows of an order over documents.  Raises: InvalidRequest; Unreadable while
        they are still being made. Set by what knows where documents begin."""
        self._kept_places = lru_cache(_PLACES_KEPT)(self._places)
        self.blocks = lru_cache(_PLACES_KEPT)(partial(BlocksOfFiles, token_counts))
        """Returns `blocks-1` over these files, given a context length and blocks of a group."""

    def require_window(self, context_length: int, of_dataset: str = "") -> None:
        """Raise InvalidRequest unless a file has at least T + 1 tokens.

        of_dataset: for the message, such as "of web ".
        """
        longest = self.longest_file_tokens
        if not 1 <= context_length < longest:
            raise InvalidRequest(
                "context_length",
                f"{context_length} is not in [1, {longest}): the longest file {of_dataset}has "
                f"{longest} tokens",
            )
        if self.row_tokens not in (None, context_length + 1):
            problem = f"{context_length} is not {self.row_tokens - 1}: the files {of_dataset}have"
            raise InvalidRequest("context_length", f"{problem} rows of {self.row_tokens} tokens")

    def places(self, context_length: int, *, has_epochs: bool) -> Places:
        """Return the possible places of windows of T + 1 tokens; there may be none.

        context_length: T, at least 1.  has_epochs: windows do not overlap; else they may begin at
        any token.
        """
        if context_length >= self.longest_file_tokens:
            # There are none, so caching is pointless.
            return self._places(context_length, has_epochs)
        return self._kept_places(context_length, has_epochs)

    def _places(self, context_length: int, has_epochs: bool) -> Places:
        if self.row_tokens is not None:
            fits = self.row_tokens == context_length + 1
            counts, stride = self.token_counts // self.row_tokens * fits, self.row_tokens
        elif has_epochs:
            counts = np.maximum(self.token_counts - 1, 0) // context_length
            stride = context_length
        else:
            counts, stride = np.maximum(self.token_counts - context_length, 0), 1
        ends = np.cumsum(counts)
        return Places(int(ends[-1]), ends, ends - counts, stride)


def plan(stream: Stream, shapes: Sequence[Shape], samples: Numbers) -> Spans:
    """Return the spans of the tokens of each sample. Nothing else maps samples to tokens.

    stream: one stage, as of `Stream.at`.  shapes: of the corpus of each source.  samples: int64[n],
    each in [first sample of the stage, 2^63).  One pass of array arithmetic, no loop over n.
    Raises: InvalidRequest if no file of a source is long enough for a window; SamplesExhausted if
    an own sample of a source would reach 2^63.
    """
    require_windows(stream, shapes)
    stage = stream.stage
    if stage.is_plain:
        ((_, _, base),) = stage.shares
        if base != stage.first_sample:
            samples = samples + (base - stage.first_sample)
            _require_int64(samples)
        return _plan_source(stream, shapes[0], samples)
    number, own_samples = locate(stage, stream.seed, samples)
    _require_int64(own_samples)
    has_epochs = tuple(source.order.HAS_EPOCHS for source in stream.sources)
    joint = _joint_places(tuple(shapes), stream.context_length, has_epochs)
    of_documents = _document_rows(stream, shapes)
    counts = list(joint.place_counts)
    for index, rows in of_documents.items():
        counts[index] = rows.row_count
    sources = [
        over_files(stream, source, shape)
        for source, shape in zip(stream.sources, shapes, strict=True)
    ]
    place = _places_of_sources(sources, counts, number, own_samples)
    if not of_documents:
        return Spans(stream.row_tokens, number, *joint.windows(number, place))
    return _mixed_spans(stream, joint, of_documents, number, place)


def _require_int64(own_samples: Numbers) -> None:
    """Raise SamplesExhausted if own samples have reached 2^63: a base may be far ahead."""
    if own_samples.size and int(own_samples.min()) < 0:
        raise SamplesExhausted("base", "is too large: a source's own sample would reach 2^63")


def _plan_source(stream: Stream, shape: Shape, samples: Numbers) -> Spans:
    """Like `plan`, for one source.  samples: its own."""
    source = stream.source
    if source.group_blocks:
        # The order knows the files already: looking them up again takes as long as all the rest.
        order = shape.blocks(stream.context_length, source.group_blocks)
        return Spans.of_windows(stream.row_tokens, *order.windows(samples, source.seed))
    count = place_count(stream, source, shape)
    return spans_at(stream, source, shape, place_of(source, samples, count))


def place_count(stream: Stream, source: Source, shape: Shape) -> int:
    """Return how many places a source has: windows, or rows of documents.  shape: of its dataset.

    Raises: InvalidRequest, Unreadable for rows of documents that are unknown, or still being made.
    """
    if source.reads_documents:
        return shape.document_rows(rows_key(stream, source)).row_count
    return row_count(source.order, shape, stream.context_length)


def over_files(stream: Stream, source: Source, shape: Shape) -> Source:
    """Return a source whose order knows the files of its dataset, for `place_of` and
    `own_sample_of`. Most orders need only the number of places; then it is the same source.

    shape: of its dataset.
    """
    if not source.order.BLOCK_TOKENS:
        return source
    return replace(source, order=shape.blocks(stream.context_length, source.group_blocks))


def place_of(source: Source, own_samples: Numbers, place_count: int) -> Numbers:
    """Return the place of each own sample of a source.  source: as of `over_files`.  place_count:
    as of `place_count`.
    """
    return source.order.places(own_samples, source.seed, place_count)


def own_sample_of(source: Source, places: Numbers, epochs: Numbers, place_count: int) -> Words:
    """Return the own sample of places in epochs: the inverse of `place_of`.

    source: as of `over_files`.
    Raises: InvalidRequest if the order of the source has no epochs.
    """
    indices = source.order.indices(places, epochs, source.seed, place_count)
    # Below 2^64: the epoch begins below 2^63, and so is the index.
    return epochs.view(np.uint64) * np.uint64(place_count) + indices.view(np.uint64)


def spans_at(stream: Stream, source: Source, shape: Shape, place: Numbers) -> Spans:
    """Return the spans of the rows at places of a source, as those of its dataset alone.

    shape: of its dataset.  place: int64[n], each in [0, `place_count`).
    """
    if source.reads_documents:
        found = shape.document_rows(rows_key(stream, source)).pieces(place)
        pieces = Pieces(found.first_piece, found.token_count)
        zeros = np.zeros_like(found.shard)
        return Spans(stream.row_tokens, zeros, found.shard, found.token_offset, pieces)
    places = shape.places(stream.context_length, has_epochs=source.order.HAS_EPOCHS)
    if places.ends.size == 1:
        shard = np.zeros_like(place)
    else:
        shard = np.searchsorted(places.ends, place, side="right")
        place = place - places.firsts[shard]
    return Spans.of_windows(stream.row_tokens, shard, place * places.stride)


def _mixed_spans(
    stream: Stream,
    joint: JointPlaces,
    of_documents: Mapping[int, DocumentRows],
    number: Numbers,
    place: Numbers,
) -> Spans:
    """Return the spans of a mixture of windows and rows of pieces.

    of_documents: the rows of each source that has pieces.  number, place: int64[n], source of each
    row, and its place there.
    """
    has_pieces = np.zeros(len(stream.sources), dtype=np.bool_)
    has_pieces[list(of_documents)] = True
    is_window = ~has_pieces[number]
    if is_window.all():
        return Spans(stream.row_tokens, number, *joint.windows(number, place))
    windows = np.flatnonzero(is_window)
    counts = np.ones_like(number)
    parts = []
    for index in np.unique(number[~is_window]).tolist():
        rows = np.flatnonzero(number == index)
        found = of_documents[index].pieces(place[rows])
        counts[rows] = np.diff(found.first_piece)
        parts.append((rows, found))
    first_span = np.zeros(number.size + 1, dtype=np.int64)
    np.cumsum(counts, out=first_span[1:])
    shard, offset = np.empty((2, int(first_span[-1])), dtype=np.int64)
    token_count = np.full_like(shard, stream.row_tokens)
    at = first_span[windows]
    shard[at], offset[at] = joint.windows(number[windows], place[windows])
    for rows, found in parts:
        # How far the pieces of each row move from their place in the part.
        shift = first_span[rows] - found.first_piece[:-1]
        at = np.arange(found.shard.size) + np.repeat(shift, counts[rows])
        shard[at], offset[at], token_count[at] = found.shard, found.token_offset, found.token_count
    source = np.repeat(number, counts)
    return Spans(stream.row_tokens, source, shard, offset, Pieces(first_span, token_count))


def rows_at_once(stream: Stream, shapes: Sequence[Shape]) -> int:
    """Return how many rows to plan at once.  shapes: as for `plan`."""
    of_documents = _document_rows(stream, shapes)
    if not of_documents:
        return PLAN_ROWS
    pieces = np.ones(len(stream.sources))  # of a row
    for index, rows in of_documents.items():
        pieces[index] = rows.piece_count / max(1, rows.row_count)
    mean = float(np.average(pieces, weights=[share.weight for share in stream.stage.shares]))
    return max(1, min(PLAN_ROWS, int(_PLAN_PIECES / mean)))


def _document_rows(stream: Stream, shapes: Sequence[Shape]) -> dict[int, DocumentRows]:
    """Return the rows of each source over documents, by its index."""
    return {
        index: shape.document_rows(rows_key(stream, source))
        for index, (source, shape) in enumerate(zip(stream.sources, shapes, strict=True))
        if source.reads_documents
    }


def rows_key(stream: Stream, source: Source) -> RowsKey:
    """Return what the rows of a source over documents are made by."""
    return RowsKey(source.order.NAME, stream.context_length, source.long_documents)


def require_windows(stream: Stream, shapes: Sequence[Shape]) -> None:
    """Raise InvalidRequest unless each source has a row: a file with at least T + 1 tokens, or a
    piece of a document.

    shapes: as for `plan`.
    """
    for source, shape in zip(stream.sources, shapes, strict=True):
        of_dataset = f"of {source.dataset} " if len(shapes) > 1 else ""
        if not source.reads_documents:
            if source.order.BLOCK_TOKENS and shape.row_tokens is not None:
                raise InvalidRequest("order", refusal_of_rows(source.order.NAME))
            shape.require_window(stream.context_length, of_dataset)
        elif not shape.document_rows(rows_key(stream, source)).row_count:
            raise no_documents_fit(stream, source, of_dataset)


def no_documents_fit(stream: Stream, source: Source, of_dataset: str = "") -> InvalidRequest:
    """Return the error of a source that has documents and no row.  of_dataset: which, if there are
    several.
    """
    kept = "" if source.long_documents == "cut" else f" and at most {stream.row_tokens}"
    problem = f"no document {of_dataset}has 2 tokens or more{kept}"
    return InvalidRequest("order", f"{source.order.NAME} has no rows: {problem}")


def refusal_of_rows(order: str) -> str:
    """Return why an order that has other rows is refused where files were packed into rows."""
    of_documents = find(order).LONG_DOCUMENTS
    what = "makes rows of documents" if of_documents else "reads blocks of tokens"
    problem = f"{order} {what}, but the files are rows already (--row-tokens)"
    return f"{problem}; use an order of windows, such as shuffled"


def _only_rows(key: RowsKey) -> DocumentRows:
    raise InvalidRequest("order", refusal_of_rows(key.order))


def _no_documents(key: RowsKey) -> DocumentRows:
    problem = f"{key.order} needs to know where documents begin, which is unknown here"
    raise InvalidRequest("order", f"{problem}; pass --document-end-token to the server")


def _places_of_sources(
    sources: Sequence[Source], place_counts: Sequence[int], number: Numbers, own_samples: Numbers
) -> Numbers:
    """Return the place of each sample among those of its source."""
    place = np.empty_like(own_samples)
    are_few = len(sources) <= _FEW_SOURCES
    for index, source in enumerate(sources):
        if are_few or source.order.BLOCK_TOKENS:
            at = np.flatnonzero(number == index)
            place[at] = place_of(source, own_samples[at], place_counts[index])
    if are_few:
        return place
    seeds = [source.seed for source in sources]
    order_of = np.array([id(source.order) for source in sources])
    for order in {s.order.NAME: s.order for s in sources if not s.order.BLOCK_TOKENS}.values():
        at = np.flatnonzero((order_of == id(order))[number])
        place[at] = order.places_among(own_samples[at], number[at], seeds, place_counts)
    return place


class JointPlaces(NamedTuple):
    """The places of several sources, one after another. Sources of the same places share them: a
    request may have thousands of sources of one dataset.

    place_counts: of each source.  first_places, first_files, strides: int64[sources], its first
    place and its first file among all, and its stride.  ends, firsts: int64[files], end and first
    of the places of each file.  one_file_each: no source has several files.
    """

    place_counts: tuple[int, ...]
    first_places: Numbers
    first_files: Numbers
    strides: Numbers
    ends: Numbers
    firsts: Numbers
    one_file_each: bool

    def windows(self, number: Numbers, place: Numbers) -> tuple[Numbers, Numbers]:
        """Return the file of each window, and its first token there.

        number, place: int64[n], its source, and its place in that.
        """
        if self.one_file_each:
            return np.zeros_like(number), place * self.strides[number]
        place = place + self.first_places[number]
        file = np.searchsorted(self.ends, place, side="right")
        offset = (place - self.firsts[file]) * self.strides[number]
        return file - self.first_files[number], offset


@lru_cache(_PLACES_KEPT)
def _joint_places(
    shapes: tuple[Shape, ...], context_length: int, has_epochs: tuple[bool, ...]
) -> JointPlaces:
    kinds = list(zip(shapes, has_epochs, strict=True))
    distinct = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    at = [distinct[kind] for kind in kinds]
    places = [shape.places(context_length, has_epochs=has) for shape, has in distinct]
    counts = np.array([each.place_count for each in places], dtype=np.int64)
    first_places = np.cumsum(counts) - counts
    file_counts = np.array([each.ends.size for each in places], dtype=np.int64)
    first_files = np.cumsum(file_counts) - file_counts
    return JointPlaces(
        tuple(counts[at].tolist()),
        first_places[at],
        first_files[at],
        np.array([each.stride for each in places], dtype=np.int64)[at],
        np.concatenate([e.ends + first for e, first in zip(places, first_places, strict=True)]),
        np.concatenate([e.firsts + first for e, first in zip(places, first_places, strict=True)]),
        bool(np.all(file_counts == 1)),
    )


def row_count(order: Order, shape: Shape, context_length: int) -> int:
    """Return the rows per epoch of an order of windows; for one without epochs, the windows that it
    draws from. One that goes by blocks has none at a context length that does not divide them, or
    where files were packed into rows.
    """
    if order.BLOCK_TOKENS and (shape.row_tokens or order.BLOCK_TOKENS % context_length):
        return 0
    return shape.places(context_length, has_epochs=order.HAS_EPOCHS).place_count
