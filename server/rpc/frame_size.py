"""How many bytes the next frame of a stream has: the first ones of a connection are small, those
behind them larger while they are read quickly, and small again while many streams wait.
"""

from __future__ import annotations

from tokenfeed.wire.frame import FRAME_BYTES_FIRST, FRAME_BYTES_TARGET

from .admission import Connection

# 5 to 7 MiB fit between a server and a client that does not read. 200 such streams got frames of
# 1 MiB and each kept two of them waiting: 2.3 MiB per stream, against 0.5 with small frames. 64
# streams at full speed got 110 Mtok/s with frames of 128 KiB throughout instead of 300, and 215 to
# 311 with frames of 256 KiB for the first UNREAD_BYTES.
CONTENDED_STREAMS = 16
CONTENDED_FRAME_BYTES = 1 << 18
UNREAD_BYTES = 8 << 20

_QUICK_SECONDS = 0.02
_SLOW_SECONDS = 0.2


def frame_bytes(connection: Connection, waiting_streams: int) -> int:
    """Return the size of the next frame, in bytes. It is smaller while more than CONTENDED_STREAMS
    wait, unless the connection was sent more bytes than its calls can leave unread, so that its
    client does read.

    waiting_streams: counts the streams of the dataset that wait for a slot.
    """
    if waiting_streams > CONTENDED_STREAMS and connection.sent_bytes < (
        connection.calls * UNREAD_BYTES
    ):
        return min(connection.frame_bytes, CONTENDED_FRAME_BYTES)
    return connection.frame_bytes


def next_frame_bytes(sent_bytes: int, taken_seconds: float) -> int:
    """Return the size of the frame behind one, in bytes, from the time that the client took to read
    that one.

    A stream starts with small frames, so that its first batch arrives early, and doubles them while
    they are read quickly. A slow consumer gets small frames, so that a slow stream uses little
    memory.
    sent_bytes: is the size that the frame was given.  taken_seconds: lasts until the client had
    room for another.
    """
    if taken_seconds < _QUICK_SECONDS:
        return min(2 * sent_bytes, FRAME_BYTES_TARGET)
    if taken_seconds > _SLOW_SECONDS:
        return max(sent_bytes // 2, FRAME_BYTES_FIRST)
    return sent_bytes
