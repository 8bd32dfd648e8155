"""Planes of rows, and the targets that they leave: token by token, as a second implementation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

import numpy as np

from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED, TOKEN_COUNTS
from tokenfeed.wire.row_block import Plane

Mask = Sequence[int] | None
"""For each token of a row 1 if it counts as a target, else 0; None if the row has no mask."""
Starts = Sequence[int]
"""The tokens of a row, but for its first, with which documents begin."""
Count = int | None
"""Tokens of a row of pieces that are no padding; None for a row of a window."""


def targets(
    tokens: Sequence[int],
    mask: Mask,
    starts: Starts,
    count: Count = None,
    redacted: Collection[int] = (),
) -> list[int]:
    """The targets of a row of T + 1 tokens.  starts, redacted: tokens that are no targets."""
    found = []
    for place in range(1, len(tokens)):
        masked = mask is not None and not mask[place]
        padding = count is not None and place >= count
        ignored = masked or padding or place in starts or place in redacted
        found.append(-100 if ignored else int(tokens[place]))
    return found


def mask_plane(masks: Sequence[Mask]) -> Plane:
    """Plane 51 of rows."""
    rows = []
    for mask in masks:
        row = bytearray(0 if mask is None else (len(mask) + 7) // 8)
        for place, counts in enumerate(mask or ()):
            row[place // 8] |= counts << place % 8
        rows.append(bytes(row))
    return _plane(LOSS_MASK, rows)


def starts_plane(starts: Sequence[Starts]) -> Plane:
    """Plane 50 of rows."""
    rows = [b"".join(place.to_bytes(4, "little") for place in row) for row in starts]
    return _plane(DOCUMENT_STARTS, rows)


def counts_plane(counts: Sequence[Count]) -> Plane:
    """Plane 52 of rows."""
    rows = [b"" if count is None else count.to_bytes(4, "little") for count in counts]
    return _plane(TOKEN_COUNTS, rows)


def redacted_plane(redacted: Sequence[Collection[int]]) -> Plane:
    """Plane 53 of rows, each with its redacted tokens."""
    rows = []
    for tokens in redacted:
        runs = groupby(enumerate(sorted(tokens)), key=lambda each: each[1] - each[0])
        found = [[token for _, token in run] for _, run in runs]
        rows.append(np.array([(run[0], run[-1] + 1) for run in found], "<u4").tobytes())
    return _plane(REDACTED, rows)


def _plane(kind: int, rows: Sequence[bytes]) -> Plane:
    lengths = np.array([len(row) for row in rows], np.uint32)
    return Plane(kind, lengths, np.frombuffer(b"".join(rows), np.uint8))
