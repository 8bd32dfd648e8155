"""Frames: fast path and protobuf agree, and nothing damaged passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tokenfeed import frame
from tokenfeed.errors import BadFrame
from tokenfeed.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb

IDENTITY = bytes(range(32))
POSITION = Position(first_sample=1000, batch_size=4, rank=1, world_size=3)
T = 5


def encoded(stream_row: int = 6, row_count: int = 3, token_bytes: int = 2) -> bytes:
    tokens = np.arange(row_count * (T + 1) * token_bytes, dtype=np.uint8)
    return frame.encode(IDENTITY, POSITION, stream_row, row_count, token_bytes, tokens)


def read(message: bytes, stream_row: int = 6) -> np.ndarray:
    return frame.decode(message).rows(IDENTITY, T, POSITION, stream_row)


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def pieces(message: bytes) -> list[bytes]:
    """The fields of one of our frames, each with its tag, as separate bytes."""
    parsed = pb.Frame.FromString(message)
    return [
        pb.Frame(**{field.name: value}).SerializeToString() for field, value in parsed.ListFields()
    ]


@given(
    stream_row=st.integers(0, 10**6),
    row_count=st.integers(1, 40),
    token_bytes=st.sampled_from([2, 4]),
)
def test_a_frame_is_an_ordinary_protobuf_message(
    stream_row: int, row_count: int, token_bytes: int
) -> None:
    """Any language's generated stub reads what the hot path has put together by hand."""
    message = encoded(stream_row, row_count, token_bytes)

    parsed = pb.Frame.FromString(message)

    batch, row = divmod(stream_row, POSITION.batch_size)
    assert parsed.first_sample == POSITION.first_sample + batch * 12
    assert (parsed.first_row, parsed.row_count) == (row, row_count)
    assert parsed.token_bytes == token_bytes
    assert parsed.identity == IDENTITY
    assert len(parsed.tokens) == row_count * (T + 1) * token_bytes
    assert parsed.checksum == reference.frame_checksum(
        IDENTITY, parsed.first_sample, row, row_count, 4, 1, 3, parsed.tokens
    )
    rows = read(message, stream_row)
    assert rows.shape == (row_count, T + 1)
    assert rows.tobytes() == parsed.tokens


@given(data=st.data(), first_sample=st.sampled_from([0, 1000, 2**62, 2**63 - 1000]))
def test_any_valid_encoding_decodes_to_the_same_rows(
    data: st.DataObject, first_sample: int
) -> None:
    """Other servers order fields as they like, and add fields that we do not know."""
    tokens = data.draw(st.binary(min_size=12, max_size=12 * 40).filter(lambda b: len(b) % 12 == 0))
    position = Position(first_sample, 4, 1, 3)
    rows = len(tokens) // 12
    message = frame.encode(IDENTITY, position, 2, rows, 2, np.frombuffer(tokens, dtype=np.uint8))
    unknown = [
        varint(20 << 3) + varint(data.draw(st.integers(0, 2**64 - 1))),
        varint(101 << 3 | 2) + b"\x05mask!",
        varint(102 << 3 | 3) + b"\x08\x01" + varint(102 << 3 | 4),
        varint(30 << 3 | 2) + b"\x04\xa2\x06\x01\x00",
    ]

    other = b"".join(data.draw(st.permutations(pieces(message) + unknown)))

    decoded = frame.decode(other).rows(IDENTITY, T, position, 2)
    assert decoded.tobytes() == tokens


@given(message=st.binary(max_size=300))
def test_fast_path_and_protobuf_agree_on_anything(message: bytes) -> None:
    """The slice is a fast path only: what it accepts, protobuf accepts, with the same content."""
    tagged = message.replace(b"\x00", b"\xa2\x06")
    for candidate in (message, tagged, encoded() + message, message + encoded()):
        try:
            expected = pb.Frame.FromString(candidate)
        except Exception:  # noqa: BLE001 - protobuf's own refusal, whatever its class
            with pytest.raises(BadFrame):
                frame.decode(candidate)
            continue
        found = frame.decode(candidate)
        assert found.tokens.tobytes() == expected.tokens
        assert (found.first_sample, found.first_row) == (expected.first_sample, expected.first_row)
        assert (found.row_count, found.checksum) == (expected.row_count, expected.checksum)


def test_a_bit_flipped_anywhere_is_found() -> None:
    """No frame may be queued that is not what was asked for."""
    message = encoded()
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            read(bytes(damaged))


@pytest.mark.parametrize(
    ("position", "stream_row"),
    [
        (Position(1000, 4, 1, 3), 7),
        (Position(1000, 4, 1, 3), 2),
        (Position(1012, 4, 1, 3), 6),
        (Position(1000, 4, 2, 3), 6),
        (Position(1000, 4, 1, 6), 2),
        (Position(1000, 2, 1, 3), 6),
    ],
)
def test_a_frame_that_answers_another_question_is_refused(
    position: Position, stream_row: int
) -> None:
    """A bit flipped in the request on its way gives good tokens of the wrong samples."""
    with pytest.raises(BadFrame):
        frame.decode(encoded()).rows(IDENTITY, T, position, stream_row)


def test_a_frame_of_another_rank_is_refused_although_its_place_is_the_same() -> None:
    """Rank and world size are in no field of the frame; only the checksum knows them."""
    with pytest.raises(BadFrame, match="checksum"):
        frame.decode(encoded()).rows(IDENTITY, T, Position(1000, 4, 0, 3), 6)


def test_a_frame_of_another_identity_is_refused() -> None:
    """Another corpus, order, seed or context length."""
    with pytest.raises(BadFrame, match="identity"):
        frame.decode(encoded()).rows(bytes(32), T, POSITION, 6)


def test_the_first_row_of_a_stream_needs_no_field_but_is_read_all_the_same() -> None:
    """Zeros are left out on the wire."""
    position = Position(0, 4)
    tokens = np.zeros(12, dtype=np.uint8)
    message = frame.encode(IDENTITY, position, 0, 1, 2, tokens)

    assert frame.decode(message).rows(IDENTITY, T, position, 0).tolist() == [[0] * 6]


def test_a_frame_holds_whole_rows_and_at_least_one() -> None:
    """A row is never cut, however long."""
    assert frame.rows_per_frame(1 << 20, 4098) == 255
    assert frame.rows_per_frame(1 << 20, 1 << 20) == 1
    assert frame.rows_per_frame(1 << 20, 1 << 29) == 1


def test_frames_grow_for_a_fast_reader_and_shrink_for_a_slow_one() -> None:
    """A first batch that is not late, and 200 slow streams that stay small."""
    size = frame.FRAME_BYTES_FIRST
    for _ in range(20):
        size = frame.next_frame_bytes(size, 0.001)
    assert size == frame.FRAME_BYTES_TARGET
    for _ in range(20):
        size = frame.next_frame_bytes(size, 1.0)
    assert size == frame.FRAME_BYTES_FIRST
