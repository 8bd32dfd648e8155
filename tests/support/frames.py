"""Rows in memory as frames: what a server sends of them."""

from __future__ import annotations

from tokenfeed.wire.draft import drafts
from tokenfeed.wire.frame import Frames
from tokenfeed.wire.row_block import RowBlock


def encode(frames: Frames, stream_row: int, block: RowBlock) -> list[bytes]:
    """The frames of a block that begins at this row of a stream."""
    dtype = block.tokens.dtype.newbyteorder("<")
    parts = drafts(frames, stream_row, len(block), dtype, block.planes)
    for part in parts:
        part.tokens[:] = block.tokens[part.rows]
    return [part.sealed() for part in parts]
