"""Where documents begin in the rows of a batch, in each form that training frameworks take.

All forms are arithmetic on a few offsets in host memory: no tokens, no device, no wait, and no loop
over rows or documents. Knows nothing of torch.

A row has T + 1 tokens; x is tokens [0, T), and the target of position t is token t + 1. So a
document that begins at j in [1, T - 1] begins at position j of x. One that begins at T is outside
of x: only the last target belongs to it. What a row begins with is its first document, even if that
began in an earlier row. The padding at the end of a row counts as one more document: attention has
to be told something about every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.stream.position import require_range
from tokenfeed.wire.row_block import RowBlock

_INT32_END = 1 << 31
_START = np.dtype("<u4")
Integers = npt.NDArray[np.int64]


class _Segments(NamedTuple):
    """The documents in the x of all rows, in order; padding is one: int64[documents] each.

    rows, offsets: where each begins.  places: its number in its row, from 0.  firsts: where it
    begins in the flattened x.  lengths: in tokens.  bounds: firsts, and B * T.
    """

    rows: Integers
    offsets: Integers
    places: Integers
    firsts: Integers
    lengths: Integers
    bounds: Integers


@dataclass(frozen=True, eq=False)
class BatchDocuments:
    """The document starts of a batch.

    batch_size: B.  context_length: T.  row_counts: int64[B], starts in each row.  starts: int64[n],
    row after row, strictly ascending within a row, each in [1, T].
    token_counts: int64[B], each in [0, T + 1]: tokens of a row, the others are padding; starts in
    padding are ignored. None: no padding.
    row_documents_max: limit of documents in the x of a row, padding included, if one is known.

    Returned arrays are new, writable, and belong to the caller.
    """

    batch_size: int
    context_length: int
    row_counts: Integers
    starts: Integers
    token_counts: Integers | None = None
    row_documents_max: int | None = None

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[RowBlock],
        *,
        row_documents_max: int | None = None,
    ) -> BatchDocuments | None:
        """Return the document starts of a batch, or None if its rows come without them. Keeps no
        reference to the parts.

        parts: B rows in all, at least one, which were checked when they arrived.
        row_documents_max: see above.
        """
        own = (plane for part in parts for plane in part.planes)
        planes = [plane for plane in own if plane.kind == DOCUMENT_STARTS]
        if len(planes) < len(parts):
            return None
        row_bytes = _joined([plane.row_lengths for plane in planes]).astype(np.int64)
        starts = _joined([plane.content for plane in planes]).view(_START).astype(np.int64)
        return cls(
            batch_size=row_bytes.size,
            context_length=parts[0].row_tokens - 1,
            row_counts=row_bytes // _START.itemsize,
            starts=starts,
            token_counts=joined_token_counts(parts),
            row_documents_max=row_documents_max,
        )

    # --- forms [B, T] ---

    def positions(self, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[np.signedinteger]:
        """Return positions within documents: [B, T] of a signed dtype, 0 at each row's and each
        document's start. A row that begins within a document begins with 0 too.
        """
        # A running sum in place: 42 microseconds for 32 x 2048. Subtracting the starts, repeated,
        # from a range takes a second array, and with its page faults 420 (2 shared cores, 2026-11).
        steps = np.ones(self._token_count, dtype)
        steps[0] = 0
        segments = self._inside
        steps[segments.firsts[1:]] = 1 - segments.lengths[:-1]
        return np.cumsum(steps, dtype=dtype, out=steps).reshape(self._shape)

    def segment_ids(self) -> npt.NDArray[np.int32]:
        """Return the number of each position's document in its row: int32 [B, T], from 1 in each
        row; 0 is padding.
        """
        segments = self._inside
        numbers = (segments.places + 1).astype(np.int32)
        if self.token_counts is not None:
            numbers[segments.offsets >= self.token_counts[segments.rows]] = 0
        return np.repeat(numbers, segments.lengths).reshape(self._shape)

    # --- lengths of documents ---

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return where documents begin in the flattened batch: int32 [documents + 1], from 0 to
        B * T, without filling.  Raises: InvalidRequest if B * T is 2^31 or more.
        """
        self._int32_token_count()
        return self._inside.bounds.astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """The length of the longest document, in tokens, in [1, T]."""
        return int(self._inside.lengths.max())

    def cu_seqlens_fixed(
        self, size: int | None = None, max_seqlen: int | None = None
    ) -> npt.NDArray[np.int32]:
        """Return `cu_seqlens` in a shape that is the same for each batch: int32 [size], filled up
        with B * T. Documents longer than max_seqlen are cut into pieces of max_seqlen.

        size: by default `least_size`, which no batch exceeds.  max_seqlen: by default T.
        Raises: InvalidRequest if this batch does not fit.
        """
        token_count = self._int32_token_count()
        if max_seqlen is None:
            max_seqlen = self.context_length
        limit = self.row_documents_max
        least = least_size(*self._shape, max_seqlen=max_seqlen, row_documents_max=limit)
        if size is None:
            size = least
        require_range("size", size, 1, _INT32_END)
        firsts = self._pieces(max_seqlen)
        if firsts.size >= size:
            why = f" with {limit} documents a row"
            if limit is None or firsts.size >= least:  # a row is above the limit of documents
                least = least_size(*self._shape)
                why = ": each token may begin a document"
            problem = f"{size} is too small for the {firsts.size} sequences of this batch"
            cure = f"pass at least {least}, which no batch exceeds{why}"
            raise InvalidRequest("size", f"{problem}; {cure}")
        filled = np.full(size, token_count, np.int32)
        filled[: firsts.size] = firsts
        return filled

    def cu_seqlens_rows(self) -> npt.NDArray[np.int32]:
        """Return where documents begin in each row: int32 [B, n], from 0, filled up with T.

        n is the largest number of documents in a row, plus 1.
        """
        segments = self._inside
        shape = self.batch_size, int(segments.places.max()) + 2
        filled = np.full(shape, self.context_length, np.int32)
        filled[segments.rows, segments.places] = segments.offsets
        return filled

    def doc_lens(self) -> tuple[npt.NDArray[np.int32], list[int]]:
        """Return the lengths of each row's documents in tokens, int32 [B, n], filled up with 0, and
        the longest of each row. n is the largest number of documents in a row.
        """
        segments = self._inside
        filled = np.zeros((self.batch_size, int(segments.places.max()) + 1), np.int32)
        filled[segments.rows, segments.places] = segments.lengths
        return filled, filled.max(axis=1).tolist()

    # --- internals ---

    @property
    def _shape(self) -> tuple[int, int]:
        return self.batch_size, self.context_length

    @property
    def _token_count(self) -> int:
        return self.batch_size * self.context_length

    def _int32_token_count(self) -> int:
        require_range("batch_size * context_length", self._token_count, 1, _INT32_END)
        return self._token_count

    def _pieces(self, max_seqlen: int) -> Integers:
        """First token of each document, and of each next max_seqlen tokens of it, in the flattened
        x: int64[pieces].
        """
        firsts, lengths = self._inside.firsts, self._inside.lengths
        if lengths.max() <= max_seqlen:
            return firsts
        counts = -(-lengths // max_seqlen)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        pieces: Integers = np.repeat(firsts, counts) + places * max_seqlen
        return pieces

    @cached_property
    def _inside(self) -> _Segments:
        row_tokens = self.context_length + 1
        # Rows and offsets in [0, T] at which a document or padding begins, or a row: ascending.
        rows, starts = np.repeat(np.arange(self.batch_size), self.row_counts), self.starts
        keys = [np.arange(self.batch_size) * row_tokens]
        if self.token_counts is not None:
            known = starts < self.token_counts[rows]
            rows, starts = rows[known], starts[known]
            padded = (self.token_counts > 0) & (self.token_counts < row_tokens)
            keys.append(keys[0][padded] + self.token_counts[padded])
        keys.append(rows * row_tokens + starts)
        rows, offsets = np.divmod(np.sort(np.concatenate(keys), kind="stable"), row_tokens)
        inside = offsets < self.context_length
        rows, offsets = rows[inside], offsets[inside]
        bounds = np.empty(rows.size + 1, np.int64)
        bounds[:-1] = rows * self.context_length + offsets
        bounds[-1] = self._token_count
        # Each row has exactly one segment that begins with it.
        places = np.arange(rows.size) - np.flatnonzero(offsets == 0)[rows]
        return _Segments(rows, offsets, places, bounds[:-1], bounds[1:] - bounds[:-1], bounds)


def least_size(
    batch_size: int,
    context_length: int,
    *,
    max_seqlen: int | None = None,
    row_documents_max: int | None = None,
) -> int:
    """Return the least size of `cu_seqlens_fixed` that no batch exceeds.

    max_seqlen: in [1, 2^31), by default T.  row_documents_max: limit of documents in the x of a
    row, padding included. None: T, since each token may begin a document; the size is then
    B * T + 1, whatever max_seqlen is.

    A row of at most D documents has the most pieces if all but one of them have one token: that one
    has T - D + 1. So a row has at most D + (T - D) // max_seqlen, and the batch ends with one more
    entry.  Raises: InvalidRequest.
    """
    if max_seqlen is None:
        max_seqlen = context_length
    require_range("max_seqlen", max_seqlen, 1, _INT32_END)
    documents = context_length
    if row_documents_max is not None:
        require_range("row_documents_max", row_documents_max, 1, _INT32_END)
        documents = min(documents, row_documents_max)
    pieces = documents + (context_length - documents) // max_seqlen
    return batch_size * pieces + 1


def joined_token_counts(parts: Sequence[RowBlock]) -> Integers | None:
    """Return how many tokens of each row are no padding; None if no row says it."""
    counts = [part.token_counts for part in parts]
    if all(each is None for each in counts):
        return None
    return _joined(
        [
            np.full(len(part), part.row_tokens) if each is None else each
            for part, each in zip(parts, counts, strict=True)
        ]
    )


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays end to end. Nearly always one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
