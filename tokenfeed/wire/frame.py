"""Bytes on the wire -> rows and their planes, and the checksum over both.

A frame is an ordinary protobuf message, which the generated stub of any language can read. The hot
path nevertheless bypasses the protobuf runtime: the tokens are the last field, so they are read as
a slice. Other valid encodings are parsed by protobuf; a property test compares both ways. draft.py
is the way back: rows -> bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ..errors import BadFrame
from ..stream.planes import KINDS
from ..stream.position import Position
from ..v1 import tokenfeed_pb2 as pb
from . import crc32c
from .request import SampleList
from .row_block import Plane, RowBlock

# The target was chosen for speed (docs/decisions/0002-frames.md), the maximum for compatibility: by
# default gRPC clients refuse messages above 4 MiB. Only a single row that is longer than the target
# exceeds it.
FRAME_BYTES_TARGET = 1 << 20
FRAME_BYTES_FIRST = 1 << 17
MESSAGE_BYTES_MAX = (1 << 22) - 1
"""Includes planes: a longer frame is split in two, unless it is a single row."""
ROW_BYTES_MAX = 1 << 30
"""A row is never split, and a protobuf message stays below 2^31 bytes."""
BYTES_PER_SECOND_MIN = 1 << 20
"""The timeouts of both sides allow one more second per this many bytes of a longer frame."""

TOKEN_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}

TOKENS_TAG = b"\xa2\x06"  # field 100, length-delimited
_SHORT_HEADER_BYTES_MAX = 1 << 10
_PLACE = struct.Struct("<32s6Q")
_LISTED_PLACE = struct.Struct("<32s32s2Q")
_PLANE_COUNT = struct.Struct("<I")
_PLANE = struct.Struct("<I32sQ")
_BYTE_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Frames:
    """What all frames of a call have in common. Writer and reader each use their own values.

    row_tokens: T + 1.  position: of the rows.  identity: 32 bytes.  plane_fingerprints: of each
    requested plane, by ascending kind, 32 bytes each.
    """

    row_tokens: int
    position: Position | SampleList
    identity: bytes
    plane_fingerprints: Mapping[int, bytes]

    def place(self, row: int) -> tuple[int, int]:
        """Return first_sample and first_row of a frame that begins at this row of the call."""
        if isinstance(self.position, SampleList):
            return 0, row
        batch, row_of_batch = divmod(row, self.position.batch_size)
        return self.position.batch_first_sample(batch), row_of_batch

    def place_bytes(self, row: int, row_count: int) -> bytes:
        """Return the place of some rows, as the checksum covers it.  row: the first one."""
        position = self.position
        if isinstance(position, SampleList):
            return _LISTED_PLACE.pack(self.identity, position.digest, row, row_count)
        ranks = position.batch_size, position.rank, position.world_size
        return _PLACE.pack(self.identity, *self.place(row), row_count, *ranks)


@dataclass(frozen=True, slots=True)
class Frame:
    """A received frame, not yet checked.

    tokens: uint8[n], a view of the message, which it keeps alive.  The other fields are those of
    tokenfeed.proto.
    """

    first_sample: int
    first_row: int
    row_count: int
    token_bytes: int
    checksum: int
    identity: bytes
    planes: tuple[Plane, ...]
    tokens: npt.NDArray[np.uint8]

    def rows(self, frames: Frames, stream_row: int) -> RowBlock:
        """Check that this is the requested frame, and return its rows, read-only.

        frames: the caller's own values, never the frame's, so that a bit flipped on the way to the
        server is found too.  stream_row: row of the stream that the frame has to begin at.
        Raises: BadFrame.
        """
        row_tokens, expected = frames.row_tokens, frames.place(stream_row)
        if (self.first_sample, self.first_row) != expected:
            found = (self.first_sample, self.first_row)
            raise BadFrame("frame", f"begins at (sample, row) {found}, expected {expected}")
        if self.identity != frames.identity:
            raise BadFrame("frame", "has another stream identity")
        dtype = TOKEN_DTYPES.get(self.token_bytes)
        if (
            dtype is None
            or self.row_count < 1
            or self.tokens.size != self.row_count * row_tokens * self.token_bytes
        ):
            raise BadFrame(
                "frame",
                f"{self.tokens.size} bytes are not {self.row_count} rows "
                f"of {row_tokens} tokens of {self.token_bytes} bytes",
            )
        kinds = tuple(plane.kind for plane in self.planes)
        requested = tuple(frames.plane_fingerprints)
        if kinds != requested:
            raise BadFrame("frame", f"has the planes {kinds}, expected {requested}")
        for plane in self.planes:
            if (
                plane.row_lengths.size != self.row_count
                or int(plane.row_lengths.sum(dtype=np.uint64)) != plane.content.size
            ):
                raise BadFrame(
                    "frame",
                    f"{plane.content.size} bytes of plane {plane.kind} do not match "
                    f"{self.row_count} rows",
                )
        block = RowBlock(self.tokens.view(dtype).reshape(self.row_count, row_tokens), self.planes)
        if self.checksum != checksum(frames, stream_row, block):
            raise BadFrame("frame", "its checksum does not match")
        return block


def checksum(frames: Frames, stream_row: int, block: RowBlock) -> int:
    """Return the CRC-32C of the rows' place in the stream, their tokens, and their planes if there
    are any, in [0, 2^32).

    stream_row: row of the call that the block begins at.
    """
    place = frames.place_bytes(stream_row, len(block))
    crc = crc32c.extend(crc32c.extend(0, place), block.tokens)
    if block.planes:
        crc = crc32c.extend(crc, _PLANE_COUNT.pack(len(block.planes)))
    for plane in block.planes:
        fingerprint = frames.plane_fingerprints[plane.kind]
        crc = crc32c.extend(crc, _PLANE.pack(plane.kind, fingerprint, plane.row_lengths.size))
        crc = crc32c.extend(crc, plane.row_lengths.astype("<u4").tobytes())
        crc = crc32c.extend(crc, _BYTE_COUNT.pack(plane.content.size))
        crc = crc32c.extend(crc, plane.content.tobytes())
    return crc


def decode(message: bytes) -> Frame:
    """Return the frame in a message, in any valid encoding.  Raises: BadFrame if it is not one."""
    tag, first = _find_tokens_fast(message)
    if tag < 0:
        tag, first = _find_tokens(message)
    if tag >= 0:
        # Exact: the bytes before the tag have to be a complete message.
        header = _parse(message[:tag])
        if header is not None:
            return _frame(header, np.frombuffer(message, dtype=np.uint8, offset=first))
    header = _parse(message)
    if header is None:
        raise BadFrame("frame", "is not a valid protobuf message")
    return _frame(header, np.frombuffer(header.tokens, dtype=np.uint8))


def rows_per_frame(frame_bytes: int, row_bytes: int) -> int:
    """Return the number of whole rows of a frame of about frame_bytes: at least one."""
    return max(1, frame_bytes // row_bytes)


def _find_tokens_fast(message: bytes) -> tuple[int, int]:
    """Like `_find_tokens`, but faster; only for a short header: without planes, or with one that
    few rows have.

    May be wrong, since a hash or a plane may contain the tag. The bytes before it are then not a
    message.
    """
    tag = message.find(TOKENS_TAG, 0, _SHORT_HEADER_BYTES_MAX)
    if tag >= 0:
        size, first = _read_varint(message, tag + len(TOKENS_TAG))
        if first + size == len(message) and size > 0:
            return tag, first
    return -1, -1


def _find_tokens(message: bytes) -> tuple[int, int]:
    """Return the byte offsets of the tokens' tag and of the tokens, if they are the last field and
    not empty; else (-1, -1).

    Iterates over the fields like any parser, without decoding them.
    """
    place, end = 0, len(message)
    while place < end:
        if message.startswith(TOKENS_TAG, place):
            size, first = _read_varint(message, place + len(TOKENS_TAG))
            if first + size == end and size > 0:
                return place, first
        tag, after = _read_varint(message, place)
        match tag & 7:
            case 0:
                place = _read_varint(message, after)[1]
            case 1:
                place = after + 8
            case 2:
                size, first = _read_varint(message, after)
                place = first + size if size >= 0 else end
            case 5:
                place = after + 4
            case _:
                return -1, -1  # a group, or an invalid message
    return -1, -1


def _parse(message: bytes) -> pb.Frame | None:
    try:
        return pb.Frame.FromString(message)
    except DecodeError:
        return None


def _frame(header: pb.Frame, tokens: npt.NDArray[np.uint8]) -> Frame:
    planes = tuple([_plane(kind, header) for kind in KINDS if header.HasField(KINDS[kind])])
    return Frame(
        header.first_sample,
        header.first_row,
        header.row_count,
        header.token_bytes,
        header.checksum,
        header.identity,
        planes,
        tokens,
    )


def _plane(kind: int, header: pb.Frame) -> Plane:
    sent: pb.Plane = getattr(header, KINDS[kind])
    lengths = np.array(sent.row_bytes, dtype=np.uint32)
    return Plane(kind, lengths, np.frombuffer(sent.content, dtype=np.uint8))


def _read_varint(message: bytes, first: int) -> tuple[int, int]:
    """Return the varint that begins at byte `first`, and its end; (-1, end of the message) if it is
    longer than ten bytes.
    """
    value = 0
    for index, byte in enumerate(message[first : first + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, first + index + 1
    return -1, len(message)
