"""The size of the next frame of a stream."""

from __future__ import annotations

import pytest

from tokenfeed.server.rpc.admission import Connection
from tokenfeed.server.rpc.frame_producer import (
    CONTENDED_FRAME_BYTES,
    CONTENDED_STREAMS,
    UNREAD_BYTES,
    frame_bytes,
    next_frame_bytes,
)
from tokenfeed.wire.frame import FRAME_BYTES_FIRST, FRAME_BYTES_TARGET


@pytest.mark.parametrize(
    ("calls", "sent_bytes", "chosen", "expected"),
    [
        (1, 0, 1 << 20, CONTENDED_FRAME_BYTES),
        (1, 0, 1 << 17, 1 << 17),
        (1, UNREAD_BYTES, 1 << 20, 1 << 20),
        (2, UNREAD_BYTES, 1 << 20, CONTENDED_FRAME_BYTES),
        (2, 2 * UNREAD_BYTES, 1 << 20, 1 << 20),
    ],
)
def test_contended_streams_get_small_frames_until_they_are_known_to_read(
    calls: int, sent_bytes: int, chosen: int, expected: int
) -> None:
    """Unread frames stay in the server's memory, two per stream."""
    connection = Connection("a", calls, sent_bytes, chosen)

    assert frame_bytes(connection, CONTENDED_STREAMS) == chosen
    assert frame_bytes(connection, CONTENDED_STREAMS + 1) == expected


def test_frames_grow_for_a_fast_reader_and_shrink_for_a_slow_one() -> None:
    """A first batch that is not late, and 200 slow streams that stay small."""
    size = FRAME_BYTES_FIRST
    for _ in range(20):
        size = next_frame_bytes(size, 0.001)
    assert size == FRAME_BYTES_TARGET
    for _ in range(20):
        size = next_frame_bytes(size, 1.0)
    assert size == FRAME_BYTES_FIRST
