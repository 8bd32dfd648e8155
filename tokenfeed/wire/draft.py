"""Rows and their planes -> bytes on the wire, without a copy of the tokens.

A frame is drafted before its tokens are known: header, planes, tag and length are written into the
message, and the store writes the tokens behind them. The checksum has a fixed width, so it is
filled in last.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..stream.planes import KINDS
from ..v1 import tokenfeed_pb2 as pb
from .frame import MESSAGE_BYTES_MAX, TOKENS_TAG, Frames, checksum
from .row_block import Plane, RowBlock

_CHECKSUM_TAG = b"\x2d"  # field 5, fixed32
_ROW_BYTES_TAG = b"\x0a"  # field 1 of Plane, length-delimited
_VARINT_BYTE_MAX = 0x7F
_HEADER_BYTES_MAX = 1 << 10

# Functions of our own: those of ctypes.pythonapi are shared with all other modules.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


class Draft:
    """A frame whose tokens are still to be written.

    rows: which rows of the drafted ones.  tokens: uint16 or uint32 [rows, T + 1], not initialized;
    memory of the message, so they have to be written before `sealed`, and never after it.
    """

    def __init__(
        self,
        frames: Frames,
        stream_row: int,
        rows: slice,
        dtype: np.dtype[np.unsignedinteger],
        planes: tuple[Plane, ...],
    ) -> None:
        """Write everything except the checksum and the tokens.

        stream_row: row of the stream that the frame begins at.  dtype: of the tokens, uint16 or
        uint32, little-endian.  planes: of these rows.
        """
        self.rows = rows
        row_count = rows.stop - rows.start
        first_sample, first_row = frames.place(stream_row)
        # In the order of the fields, as the protobuf runtime writes them.
        before = pb.Frame(
            first_sample=first_sample,
            first_row=first_row,
            row_count=row_count,
            token_bytes=dtype.itemsize,
        )
        behind = pb.Frame(identity=frames.identity)
        for plane in planes:
            sent: pb.Plane = getattr(behind, KINDS[plane.kind])
            _extend(sent, plane.row_lengths)
            sent.content = plane.content.tobytes()
            sent.fingerprint = frames.plane_fingerprints[plane.kind]
        head = before.SerializeToString() + _CHECKSUM_TAG
        self._checksum_place = len(head)
        size_bytes = row_count * frames.row_tokens * dtype.itemsize
        head += bytes(4) + behind.SerializeToString() + TOKENS_TAG + _varint(size_bytes)
        self._message = _UnwrittenBytes(len(head) + size_bytes)
        self._message.write(0, head)
        self.tokens = self._message.array(len(head), (row_count, frames.row_tokens), dtype)
        self._frames, self._stream_row, self._planes = frames, stream_row, planes

    def sealed(self) -> bytes:
        """Return the message, once all tokens are written."""
        crc = checksum(self._frames, self._stream_row, RowBlock(self.tokens, self._planes))
        self._message.write(self._checksum_place, crc.to_bytes(4, "little"))
        return self._message.content


def drafts(
    frames: Frames,
    stream_row: int,
    row_count: int,
    dtype: np.dtype[np.unsignedinteger],
    planes: Sequence[Plane] = (),
    first: int = 0,
) -> list[Draft]:
    """Return the frames of consecutive rows: one, or several if one would exceed MESSAGE_BYTES_MAX.

    stream_row: row of the stream that they begin at.  dtype: of the tokens, uint16 or uint32.
    planes: of all these rows.  first: number of the first of these rows in `Draft.rows`.
    """
    size_bytes = row_count * frames.row_tokens * dtype.itemsize
    for plane in planes:
        size_bytes += plane.content.size + 5 * plane.row_lengths.size
    if size_bytes <= MESSAGE_BYTES_MAX - _HEADER_BYTES_MAX or row_count == 1:
        return [Draft(frames, stream_row, slice(first, first + row_count), dtype, tuple(planes))]
    half = row_count // 2
    return [
        draft
        for begin, end in ((0, half), (half, row_count))
        for draft in drafts(
            frames,
            stream_row + begin,
            end - begin,
            dtype,
            [plane[begin:end] for plane in planes],
            first + begin,
        )
    ]


class _UnwrittenBytes:
    """A bytes object whose content is written after its creation: gRPC sends nothing else.

    CPython allows that until the object is seen by anyone else (PyBytes_AsString in its C API).
    """

    def __init__(self, size_bytes: int) -> None:
        self.content: bytes = _new_bytes(None, size_bytes)
        self._address: int = _address_of(self.content)

    def write(self, place: int, part: bytes) -> None:
        """Write a part, from byte `place` on."""
        ctypes.memmove(self._address + place, part, len(part))

    def array(
        self, place: int, shape: tuple[int, int], dtype: np.dtype[np.unsignedinteger]
    ) -> npt.NDArray[np.unsignedinteger]:
        """Return the content from byte `place` on as a writable array, which keeps it alive."""
        return np.asarray(_Memory(self, self._address + place, shape, dtype))


class _Memory:
    """What numpy makes an array of; the array keeps it, and so its owner."""

    def __init__(
        self,
        owner: object,
        address: int,
        shape: tuple[int, int],
        dtype: np.dtype[np.unsignedinteger],
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
        }


def _extend(sent: pb.Plane, row_lengths: npt.NDArray[np.uint32]) -> None:
    """Set row_bytes. One byte each, as nearly all are in rows of few documents, they are copied: 2
    us for 256 rows instead of 12. 2 shared cores, 2026-11.
    """
    if row_lengths.size and int(row_lengths.max()) <= _VARINT_BYTE_MAX:
        packed = row_lengths.astype(np.uint8).tobytes()
        sent.MergeFromString(_ROW_BYTES_TAG + _varint(len(packed)) + packed)
    else:
        sent.row_bytes.extend(row_lengths.tolist())


def _varint(value: int) -> bytes:
    """Return value, in [0, 2^64), as a protobuf varint: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
