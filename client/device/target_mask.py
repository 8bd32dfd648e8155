"""Targets that do not count: loss masks, document borders, padding and redacted tokens -> y = -100.

The host combines all that makes a target count or not into bits, like those of the plane loss_mask:
T + 1 bits for each row, and bit j % 8 of byte j // 8 is 1 if token j counts as a target. On the way
to a device they lie behind the tokens of their row, so that one copy brings both. Knows nothing of
torch.

Which of them apply is said by kinds of planes, where rows have them:

    loss_mask         tokens that the mask says
    document_starts   tokens that begin a document
    token_counts      padding, and tokens that begin a piece of a document, in rows of pieces: those
                      that have a count. In rows of windows, which have none, it ignores nothing.
    redacted          tokens that were replaced; most rows have none
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED, TOKEN_COUNTS
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.row_block import Plane, RowBlock

IGNORED_TARGET = -100
"""The value of y where nothing is learned: the default ignore_index of torch's cross_entropy."""

_LOG = logging.getLogger("tokenfeed.client")

Bits = npt.NDArray[np.uint8]

_WHOLE_BATCH = -1
"""The value of `_warned_rows` once a whole batch was warned of, and no more warnings follow."""


def _greatest(dtype: type[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """Return the greatest values of 8 targets for each byte of bits; -100 where none counts."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.iinfo(dtype).max, IGNORED_TARGET).astype(dtype)


_GREATEST = {2: _greatest(np.int32), 4: _greatest(np.int64)}
"""By the width of a served token in bytes."""
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)
"""How many bits of each byte are 1."""


class TargetWatch:
    """Warns of rows of documents without a target, and of a batch without any: its mean loss is not
    a number.
    """

    def __init__(self) -> None:
        """Begin without a warning; there are at most two, the second of a whole batch."""
        self._warned_rows = 0

    def see(self, parts: Sequence[RowBlock]) -> None:
        """Look at the loss mask of a batch, which takes 10 microseconds for 32 x 2048.

        parts: the rows of a batch, in all.
        """
        if self._warned_rows == _WHOLE_BATCH:
            return
        rows = sum(map(len, parts))
        found = sum(map(_rows_without_targets, parts))
        # Of windows, which fall anywhere, some have none.
        are_documents = parts[0].token_counts is not None
        if found == rows or (found and are_documents and not self._warned_rows):
            self._warned_rows = _WHOLE_BATCH if found == rows else found
            whole = "; the mean loss of a batch without a target is not a number"
            _LOG.warning(
                "%d of the %d rows of a batch have no target: their loss mask has none%s. A longer "
                "context_length has more of a document in a row",
                found,
                rows,
                whole if found == rows else "",
            )


def _rows_without_targets(part: RowBlock) -> int:
    """Return how many rows have a loss mask and no target in it. Token 0 of a row is no target."""
    for plane in part.planes:
        if plane.kind == LOSS_MASK and plane.content.size:
            bits = plane.content.reshape(-1, _bit_bytes(part.row_tokens))
            has_target = bits[:, 1:].any(axis=1) | (bits[:, 0] > 1)
            return int(has_target.size - np.count_nonzero(has_target))
    return 0


def masks_of(parts: Sequence[RowBlock], masks: Collection[int]) -> tuple[int, ...]:
    """Return the kinds of planes that mask the targets of these rows.

    parts: at least one; all of them have the same planes.  masks: kinds that mask targets.
    """
    return tuple([plane.kind for plane in parts[0].planes if plane.kind in masks])


def without_tokens(part: RowBlock, masks: Collection[int]) -> RowBlock:
    """Return what says how many targets of rows count, and keeps no frame alive.  masks: as of
    `target_counts`.
    """
    planes: tuple[Plane, ...] = ()
    if masks_of([part], masks):
        planes = tuple([replace(plane, content=plane.content.copy()) for plane in part.planes])
    none = np.zeros(1, part.tokens.dtype)
    return RowBlock(np.broadcast_to(none, part.tokens.shape), planes)


def target_counts(parts: Sequence[RowBlock], masks: Collection[int]) -> npt.NDArray[np.int64]:
    """Return how many targets of each row count: int64[B], new, each in [0, T].

    parts: B rows in all.  masks: kinds of planes that mask targets.
    """
    applied = masks_of(parts, masks)
    return np.concatenate([_target_counts(part, applied) for part in parts])


def _target_counts(part: RowBlock, masks: Collection[int]) -> npt.NDArray[np.int64]:
    if not masks:
        return np.full(len(part), part.row_tokens - 1)
    bits = _bits_of(part, masks)
    counts: npt.NDArray[np.int64] = _ONES[bits].sum(axis=1, dtype=np.int64)
    # Token 0 is no target, and what is behind the last token is undefined.
    counts -= (bits[:, 0] & 1) + _ONES[bits[:, -1] >> (part.row_tokens - 1) % 8 + 1]
    return counts


def bit_columns(row_tokens: int, token_bytes: int) -> int:
    """Return how many columns of this width, behind the tokens of a row, hold its bits."""
    return -(-_bit_bytes(row_tokens) // token_bytes)


def write_bits(parts: Sequence[RowBlock], bits: Bits, masks: Collection[int]) -> None:
    """Write which tokens count as targets.

    parts: B rows in all.  bits: uint8 [B, at least (T + 8) // 8].  masks: kinds of planes to apply.
    Bits behind the last token of a row are undefined.
    Rows of pieces with padding, 32 x 2048 with 16 pieces each, take 38 microseconds, and a mask
    alone 2. 2 shared cores, 2026-11.
    """
    first = 0
    for part in parts:
        end = first + len(part)
        own = bits[first:end, : _bit_bytes(part.row_tokens)]
        planes = {plane.kind: plane for plane in part.planes}
        _write_mask(planes.get(LOSS_MASK) if LOSS_MASK in masks else None, own)
        starts = planes.get(DOCUMENT_STARTS)
        if starts is not None and DOCUMENT_STARTS in masks:
            _clear_starts(starts, own)
        counts = part.token_counts if TOKEN_COUNTS in masks else None
        if counts is not None:
            if starts is not None and DOCUMENT_STARTS not in masks:
                _clear_starts(starts, own, planes[TOKEN_COUNTS].row_lengths > 0)
            _clear_padding(counts, part.row_tokens, own)
        if REDACTED in masks:
            _clear_redacted(planes[REDACTED], own)
        first = end


def widen_targets(
    parts: Sequence[RowBlock], y: npt.NDArray[np.signedinteger], masks: Collection[int]
) -> None:
    """Widen the targets of rows into y on the CPU; those that do not count become -100.

    parts: B rows in all.  y: [B, T].  masks: kinds of planes to apply.
    A minimum with a table needs no branch, and NumPy widens both in its own small buffers: 32 x
    2048 take 46 to 56 microseconds, without a mask 44, with numpy.putmask and arrays in between
    over 100. 2 shared cores, 2026-11. Where there is no mask, few targets do not count, in runs.
    """
    first = 0
    for part in parts:
        end = first + len(part)
        own, planes = y[first:end], {plane.kind: plane for plane in part.planes}
        if LOSS_MASK in masks and LOSS_MASK in planes:
            _apply_mask(part, own, [kind for kind in masks if kind != REDACTED])
        else:
            np.copyto(own, part.tokens[:, 1:], casting="unsafe")
            _ignore_borders(part, own, masks)
        if REDACTED in masks:
            for row, token, behind in redacted_runs.runs_of(planes[REDACTED]):
                own[row, max(token - 1, 0) : behind - 1] = IGNORED_TARGET
        first = end


def _apply_mask(part: RowBlock, y: npt.NDArray[np.signedinteger], masks: Collection[int]) -> None:
    """Widen the targets of rows with a mask.  y: [rows, T]."""
    table = _GREATEST[part.tokens.itemsize]
    greatest = table.take(_bits_of(part, masks), axis=0).reshape(len(part), -1)
    np.minimum(
        part.tokens[:, 1:],
        greatest[:, 1 : part.row_tokens],
        out=y,
        dtype=table.dtype,
        casting="unsafe",
    )


def _ignore_borders(
    part: RowBlock, y: npt.NDArray[np.signedinteger], masks: Collection[int]
) -> None:
    """Ignore the targets of rows without a mask: where documents begin, and padding.  y: [rows, T].

    Packed rows of web-like documents, 32 x 2048, take 30 microseconds with the tokens, by bits and
    the table 70; padded rows of chat-like ones 51, by bits 76. 2 shared cores, 2026-11.
    """
    planes = {plane.kind: plane for plane in part.planes}
    counts = part.token_counts if TOKEN_COUNTS in masks else None
    plane = planes.get(DOCUMENT_STARTS)
    if plane is not None and (DOCUMENT_STARTS in masks or counts is not None):
        starts = plane.content.view("<u4")
        per_row = plane.row_lengths // starts.itemsize
        # Token j is the target of position j - 1.
        places = np.repeat(np.arange(len(y)) * y.shape[1] - 1, per_row) + starts
        if DOCUMENT_STARTS not in masks:
            places = places[np.repeat(planes[TOKEN_COUNTS].row_lengths > 0, per_row)]
        y.reshape(-1)[places] = IGNORED_TARGET
    if counts is not None:
        for row in np.flatnonzero(counts < part.row_tokens).tolist():
            y[row, counts[row] - 1 :] = IGNORED_TARGET


def _bits_of(part: RowBlock, masks: Collection[int]) -> Bits:
    """Return which tokens of rows count as targets, without a copy where the mask says it all:
    uint8 [rows, (T + 8) // 8].
    """
    shape = len(part), _bit_bytes(part.row_tokens)
    for plane in part.planes if tuple(masks) == (LOSS_MASK,) else ():
        if plane.kind == LOSS_MASK and plane.content.size == shape[0] * shape[1]:
            return plane.content.reshape(shape)
    bits = np.empty(shape, np.uint8)
    write_bits([part], bits, masks)
    return bits


def _bit_bytes(row_tokens: int) -> int:
    return (row_tokens + 7) // 8


def _write_mask(plane: Plane | None, bits: Bits) -> None:
    """Write the mask of rows; all tokens count in rows without one.  bits: [rows, bytes]."""
    if plane is None or not plane.content.size:
        bits[:] = 0xFF
    elif plane.content.size == bits.size:
        bits[:] = plane.content.reshape(bits.shape)
    else:
        bits[:] = 0xFF
        bits[plane.row_lengths > 0] = plane.content.reshape(-1, bits.shape[1])


def _clear_starts(plane: Plane, bits: Bits, chosen: npt.NDArray[np.bool_] | None = None) -> None:
    """Clear the bit of each token that begins a document: its input is of another document.

    chosen: bool[rows], rows to do it in; None is all.
    A byte for each token, packed: 32 x 2048 take 10 microseconds with 16 starts a row, and 14 with
    121. numpy.bitwise_and.at takes 11 and 44. 2 shared cores, 2026-11.
    """
    starts = plane.content.view("<u4")
    row_bits = 8 * bits.shape[1]
    firsts = np.repeat(np.arange(len(bits)) * row_bits, plane.row_lengths // starts.itemsize)
    places = firsts + starts
    if chosen is not None and not chosen.all():
        places = places[np.repeat(chosen, plane.row_lengths // starts.itemsize)]
    if not places.size:
        return
    counts = np.ones(len(bits) * row_bits, np.bool_)
    counts[places] = False
    bits &= np.packbits(counts, bitorder="little").reshape(bits.shape)


def _clear_padding(token_counts: npt.NDArray[np.int64], row_tokens: int, bits: Bits) -> None:
    """Clear the bit of each token of padding.  token_counts: int64[rows], in [0, row_tokens]."""
    rows = np.flatnonzero(token_counts < row_tokens)
    if not rows.size:
        return
    byte, kept = np.divmod(token_counts[rows], 8)
    bits[rows, byte] &= ((1 << kept) - 1).astype(np.uint8)
    # Over all rows: a product with a table of booleans needs no copy of the bits.
    ends = (token_counts // 8)[:, np.newaxis]
    np.multiply(bits, np.arange(bits.shape[1]) <= ends, out=bits)


def _clear_redacted(plane: Plane, bits: Bits) -> None:
    """Clear the bit of each redacted token, in the few rows that have one."""
    runs = redacted_runs.runs_of(plane)
    if not runs:
        return
    rows = np.flatnonzero(plane.row_lengths)
    counts = np.unpackbits(bits[rows], axis=1, bitorder="little")
    places = {row: place for place, row in enumerate(rows.tolist())}
    for row, first, end in runs:
        counts[places[row], first:end] = 0
    bits[rows] = np.packbits(counts, axis=1, bitorder="little")
