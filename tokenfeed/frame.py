"""Tokens <-> bytes on the wire, and the checksum over both.

A frame is an ordinary protobuf message, so any language's generated stub reads it. The hot path
skips the protobuf runtime all the same: the tokens are the last field, so a frame is written as
header, tag, length and tokens in one join, and read as a slice. Any other valid encoding is parsed
by protobuf; a property test holds both together.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from .errors import BadFrame, TokenfeedError
from .position import Position
from .v1 import tokenfeed_pb2 as pb

# The target is a question of speed (docs/decisions/0002-frames.md), the maximum one of
# compatibility: gRPC clients refuse messages above 4 MiB unless told otherwise. Only a single row
# longer than the target goes beyond it.
FRAME_BYTES_TARGET = 1 << 20
FRAME_BYTES_FIRST = 1 << 17
ROW_BYTES_MAX = 1 << 30
"""A row is never cut, and a protobuf message stays below 2^31 bytes."""
BYTES_PER_SECOND_MIN = 1 << 20
"""A frame longer than this may take a second more on its way for each such part of it, as both
sides see it: before that nobody calls the other one silent.
"""

TOKEN_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}

_TOKENS_TAG = b"\xa2\x06"  # field 100, length-delimited
_CHECKSUM_TAG = b"\x2d"  # field 5, fixed32
_HEADER_BYTES_MAX = 128
_PLACE = struct.Struct("<32s6Q")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it arrived, not yet trusted.

    tokens: uint8[n], a view of the message, which it keeps alive.  The other fields are as in
    tokenfeed.proto.
    """

    first_sample: int
    first_row: int
    row_count: int
    token_bytes: int
    checksum: int
    identity: bytes
    tokens: npt.NDArray[np.uint8]

    def rows(
        self, identity: bytes, context_length: int, position: Position, stream_row: int
    ) -> npt.NDArray[np.unsignedinteger]:
        """Check that this is what was asked for, and return its rows: uint16 or uint32 [row_count,
        T + 1], read-only.

        identity, position: the caller's own, never the frame's, so that a bit flipped on the way to
        the server is found as well.  stream_row: row of the stream that the frame has to begin
        with.
        Raises: BadFrame.
        """
        batch, row = divmod(stream_row, position.batch_size)
        expected = (position.batch_first_sample(batch), row)
        if (self.first_sample, self.first_row) != expected:
            raise BadFrame(
                "frame",
                f"begins at (sample, row) {(self.first_sample, self.first_row)}, not {expected}",
            )
        if self.identity != identity:
            raise BadFrame("frame", "is of another stream identity")
        dtype = TOKEN_DTYPES.get(self.token_bytes)
        if (
            dtype is None
            or self.row_count < 1
            or self.tokens.size != self.row_count * (context_length + 1) * self.token_bytes
        ):
            raise BadFrame(
                "frame",
                f"{self.tokens.size} bytes are not {self.row_count} rows "
                f"of {context_length + 1} tokens of {self.token_bytes} bytes",
            )
        if self.checksum != checksum(identity, position, stream_row, self.row_count, self.tokens):
            raise BadFrame("frame", "its checksum does not match")
        return self.tokens.view(dtype).reshape(self.row_count, context_length + 1)


def checksum(
    identity: bytes,
    position: Position,
    stream_row: int,
    row_count: int,
    tokens: npt.NDArray[np.uint8],
) -> int:
    """Return the CRC-32C of where rows stand in the stream and then of their tokens, in [0, 2^32).

    identity: 32 bytes.  stream_row: row of the stream that the tokens begin with.  tokens:
    uint8[n], as on the wire.
    """
    batch, row = divmod(stream_row, position.batch_size)
    place = _PLACE.pack(
        identity,
        position.batch_first_sample(batch),
        row,
        row_count,
        position.batch_size,
        position.rank,
        position.world_size,
    )
    # The C extension takes any contiguous buffer; its stub knows only bytes.
    return google_crc32c.extend(google_crc32c.value(place), tokens)  # type: ignore[no-any-return]


def encode(
    identity: bytes,
    position: Position,
    stream_row: int,
    row_count: int,
    token_bytes: int,
    tokens: npt.NDArray[np.uint8],
) -> bytes:
    """Return a frame as bytes, ready for the wire.

    tokens: uint8[row_count * (T + 1) * token_bytes]; copied, so it may be reused at once.
    """
    batch, row = divmod(stream_row, position.batch_size)
    header = pb.Frame(
        first_sample=position.batch_first_sample(batch),
        first_row=row,
        row_count=row_count,
        token_bytes=token_bytes,
        checksum=checksum(identity, position, stream_row, row_count, tokens),
        identity=identity,
    )
    return b"".join((header.SerializeToString(), _TOKENS_TAG, _varint(tokens.size), tokens.data))


def decode(message: bytes) -> Frame:
    """Return the frame in a message, any valid encoding of it.  Raises: BadFrame if it is none."""
    tag = message.find(_TOKENS_TAG, 0, _HEADER_BYTES_MAX)
    while tag >= 0:
        frame = _decode_tokens_last(message, tag)
        if frame is not None:
            return frame
        tag = message.find(_TOKENS_TAG, tag + 1, _HEADER_BYTES_MAX)
    header = _parse(message)
    if header is None:
        raise BadFrame("frame", "is no valid protobuf message")
    return _frame(header, np.frombuffer(header.tokens, dtype=np.uint8))


def require_fast_checksum() -> None:
    """Raise TokenfeedError if the checksum library fell back to pure Python, which is a hundred
    times slower than the wire.
    """
    if google_crc32c.implementation != "c":
        raise TokenfeedError(
            "google-crc32c", "its C extension does not load here; reinstall it from a wheel"
        )


def rows_per_frame(frame_bytes: int, row_bytes: int) -> int:
    """Return how many whole rows make a frame of about frame_bytes: at least one."""
    return max(1, frame_bytes // row_bytes)


def next_frame_bytes(frame_bytes: int, taken_seconds: float) -> int:
    """Return how large the next frame should be, from how long the client took to take this one.

    A stream begins with small frames, so that its first batch is not late, and doubles them as long
    as they are taken quickly; a slow consumer gets small ones, which keeps what a slow stream holds
    in memory small.
    """
    if taken_seconds < 0.02:
        return min(2 * frame_bytes, FRAME_BYTES_TARGET)
    if taken_seconds > 0.2:
        return max(frame_bytes // 2, FRAME_BYTES_FIRST)
    return frame_bytes


def _decode_tokens_last(message: bytes, tag: int) -> Frame | None:
    """Return the frame if its tokens field is tagged here and is the last one, else None.

    Exact, not a guess: if what precedes the tag is a complete message by itself, any parser arrives
    at the tag too.
    """
    size, first = _read_varint(message, tag + len(_TOKENS_TAG))
    if first + size != len(message):
        return None
    header = _parse(message[:tag])
    return (
        None
        if header is None
        else _frame(
            header, np.frombuffer(message, dtype=np.uint8, offset=first) if size else _EMPTY
        )
    )


def _parse(message: bytes) -> pb.Frame | None:
    try:
        return pb.Frame.FromString(message)
    except DecodeError:
        return None


def _frame(header: pb.Frame, tokens: npt.NDArray[np.uint8]) -> Frame:
    return Frame(
        header.first_sample,
        header.first_row,
        header.row_count,
        header.token_bytes,
        header.checksum,
        header.identity,
        tokens,
    )


_EMPTY = np.empty(0, dtype=np.uint8)


def _varint(value: int) -> bytes:
    """Return value, in [0, 2^64), as a protobuf varint: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: bytes, first: int) -> tuple[int, int]:
    """Return the varint that begins at byte `first`, and where it ends; (-1, end) if it has no end
    within ten bytes.
    """
    value = 0
    for index, byte in enumerate(message[first : first + 5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, first + index + 1
    return -1, len(message)
