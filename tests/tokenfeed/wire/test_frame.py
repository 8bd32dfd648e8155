"""Frames: fast path and protobuf agree, and nothing damaged passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tests.support.frames import encode
from tokenfeed.errors import BadFrame
from tokenfeed.stream.planes import KINDS
from tokenfeed.stream.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import SampleList
from tokenfeed.wire.row_block import Plane, RowBlock

IDENTITY = bytes(range(32))
POSITION = Position(first_sample=1000, batch_size=4, rank=1, world_size=3)
T = 5
FINGERPRINTS = {50: bytes([50] * 32), 51: bytes([51] * 32), 52: bytes(32), 53: bytes(32)}
MIB_4 = 4 << 20


def frames_of(
    planes: Sequence[int] = (), position: Position | SampleList = POSITION, context_length: int = T
) -> frame.Frames:
    guards = {kind: FINGERPRINTS[kind] for kind in planes}
    return frame.Frames(context_length + 1, position, IDENTITY, guards)


def plane_of(kind: int, contents: Sequence[bytes]) -> Plane:
    lengths = np.array([len(content) for content in contents], dtype=np.uint32)
    return Plane(kind, lengths, np.frombuffer(b"".join(contents), dtype=np.uint8))


def block_of(
    row_count: int = 3, token_bytes: int = 2, planes: dict[int, list[bytes]] | None = None
) -> RowBlock:
    tokens = np.arange(row_count * (T + 1) * token_bytes, dtype=np.uint8)
    found = tokens.view(frame.TOKEN_DTYPES[token_bytes]).reshape(row_count, T + 1)
    return RowBlock(
        found, tuple(plane_of(kind, contents) for kind, contents in sorted((planes or {}).items()))
    )


def encoded_block(
    block: RowBlock, stream_row: int = 6, position: Position | SampleList = POSITION
) -> bytes:
    frames = frames_of([plane.kind for plane in block.planes], position)
    (message,) = encode(frames, stream_row, block)
    return message


def encoded(stream_row: int = 6, row_count: int = 3, token_bytes: int = 2) -> bytes:
    return encoded_block(block_of(row_count, token_bytes), stream_row)


def read(message: bytes, stream_row: int = 6) -> np.ndarray:
    return frame.decode(message).rows(frames_of(), stream_row).tokens


def plain(block: RowBlock) -> tuple[bytes, list[tuple[int, list[int], bytes]]]:
    """What is in a block, to be compared."""
    planes = [
        (plane.kind, plane.row_lengths.tolist(), plane.content.tobytes()) for plane in block.planes
    ]
    return block.tokens.tobytes(), planes


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def delimited(number: int, content: bytes) -> bytes:
    """A field of bytes, of text, or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def pieces(message: bytes) -> dict[int, list[bytes]]:
    """The fields of one of our frames by number, each with its tag, as separate bytes."""
    parsed = pb.Frame.FromString(message)
    return {
        field.number: [pb.Frame(**{field.name: value}).SerializeToString()]
        for field, value in parsed.ListFields()
    }


def plane_pieces(kind: int, contents: list[bytes], split: int) -> dict[str, list[bytes]]:
    """A plane in several parts, which a parser has to merge: what comes in any order has other
    names, what comes in this one has the same.
    """
    lengths = [varint(len(content)) for content in contents]
    packed = delimited(kind, delimited(1, b"".join(lengths[:split])))
    one_by_one = [delimited(kind, b"\x08" + length) for length in lengths[split:]]
    return {
        f"{kind} lengths": [packed, *one_by_one],
        f"{kind} content": [
            delimited(kind, delimited(2, b"overwritten") + delimited(77, b"unknown")),
            delimited(kind, delimited(2, b"".join(contents))),
        ],
        f"{kind} fingerprint": [delimited(kind, delimited(3, FINGERPRINTS[kind]))],
    }


CONTENTS = st.dictionaries(
    st.sampled_from(sorted(KINDS)), st.lists(st.binary(max_size=20), min_size=40, max_size=40)
)
"""Planes of up to 40 rows, by kind."""


@given(
    stream_row=st.integers(0, 10**6),
    row_count=st.integers(1, 40),
    token_bytes=st.sampled_from([2, 4]),
    contents=CONTENTS,
)
def test_a_frame_is_an_ordinary_protobuf_message(
    stream_row: int, row_count: int, token_bytes: int, contents: dict[int, list[bytes]]
) -> None:
    """Any language's generated stub reads what the hot path has put together by hand."""
    planes = {kind: found[:row_count] for kind, found in contents.items()}
    block = block_of(row_count, token_bytes, planes)
    message = encoded_block(block, stream_row)

    parsed = pb.Frame.FromString(message)

    batch, row = divmod(stream_row, POSITION.batch_size)
    assert parsed.first_sample == POSITION.first_sample + batch * 12
    assert (parsed.first_row, parsed.row_count) == (row, row_count)
    assert parsed.token_bytes == token_bytes
    assert parsed.identity == IDENTITY
    assert len(parsed.tokens) == row_count * (T + 1) * token_bytes
    expected = [
        reference.Plane(kind, FINGERPRINTS[kind], [len(one) for one in found], b"".join(found))
        for kind, found in sorted(planes.items())
    ]
    assert expected == [
        reference.Plane(field.number, plane.fingerprint, list(plane.row_bytes), plane.content)
        for field, plane in parsed.ListFields()
        if field.number in KINDS
    ]
    assert parsed.checksum == reference.frame_checksum(
        IDENTITY, parsed.first_sample, row, row_count, 4, 1, 3, parsed.tokens, expected or None
    )
    rows = frame.decode(message).rows(frames_of(sorted(planes)), stream_row)
    assert rows.tokens.shape == (row_count, T + 1)
    assert rows.tokens.tobytes() == parsed.tokens
    assert plain(rows) == plain(block)


@given(contents=CONTENTS, row_count=st.integers(1, 40))
def test_a_frame_is_written_as_the_second_implementation_writes_it(
    contents: dict[int, list[bytes]], row_count: int
) -> None:
    """Fields by ascending number, the tokens last: what a reader that takes a slice counts on."""
    planes = {kind: found[:row_count] for kind, found in contents.items()}
    message = encoded_block(block_of(row_count, 2, planes))

    parsed = pb.Frame.FromString(message)
    expected = [
        reference.Plane(kind, FINGERPRINTS[kind], [len(one) for one in found], b"".join(found))
        for kind, found in planes.items()
    ]
    assert message == reference.frame_message(
        IDENTITY, 1012, 2, row_count, 2, parsed.checksum, parsed.tokens, expected
    )


@given(
    data=st.data(),
    first_sample=st.sampled_from([0, 1000, 2**62, 2**63 - 1000]),
    contents=CONTENTS,
)
def test_any_valid_encoding_decodes_to_the_same_rows(
    data: st.DataObject, first_sample: int, contents: dict[int, list[bytes]]
) -> None:
    """Other servers order fields as they like, write some twice or in parts, and add fields that we
    do not know.
    """
    tokens = data.draw(st.binary(min_size=12, max_size=12 * 40).filter(lambda b: len(b) % 12 == 0))
    position = Position(first_sample, 4, 1, 3)
    rows = len(tokens) // 12
    planes = {kind: found[:rows] for kind, found in contents.items()}
    block = RowBlock(
        np.frombuffer(tokens, dtype="<u2").reshape(rows, T + 1), block_of(rows, 2, planes).planes
    )
    fields: dict[object, list[bytes]] = {**pieces(encoded_block(block, 2, position))}
    for kind, found in planes.items():
        del fields[kind]
        fields |= plane_pieces(kind, found, data.draw(st.integers(0, rows)))
    # What comes again counts: of a field that has one value, the last one.
    fields[3].insert(0, varint(3 << 3) + varint(data.draw(st.integers(0, 2**64 - 1))))
    fields[6].insert(0, delimited(6, b"another identity"))
    fields[100].insert(0, delimited(100, data.draw(st.binary(max_size=12))))
    fields["unknown"] = [
        varint(20 << 3) + varint(data.draw(st.integers(0, 2**64 - 1))),
        varint(101 << 3 | 2) + b"\x05mask!",
        varint(102 << 3 | 3) + b"\x08\x01" + varint(102 << 3 | 4),
        varint(30 << 3 | 2) + b"\x04\xa2\x06\x01\x00",
        varint(54 << 3 | 2) + b"\x03new",
        varint(99 << 3 | 5) + b"\xa2\x06\x01\x00",
        varint(49 << 3 | 1) + b"\xa2\x06\x00\x00\x00\x00\xa2\x06",
    ]
    names = [name for name, parts in fields.items() for _ in parts]

    other = b"".join(fields[name].pop(0) for name in data.draw(st.permutations(names)))

    decoded = frame.decode(other).rows(frames_of(sorted(planes), position), 2)
    assert decoded.tokens.tobytes() == tokens
    assert plain(decoded) == plain(block)


PLANE_PART = st.one_of(
    st.lists(st.integers(0, 2**32 - 1), max_size=4).map(
        lambda lengths: delimited(1, b"".join(map(varint, lengths)))
    ),
    st.integers(0, 2**32 - 1).map(lambda length: b"\x08" + varint(length)),
    st.binary(max_size=8).map(lambda content: delimited(2, content)),
    st.binary(max_size=8).map(lambda content: delimited(3, content)),
    st.just(delimited(9, b"\xa2\x06\x00")),
)
PART = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(0, 2**64 - 1)).map(
        lambda field: varint(field[0] << 3) + varint(field[1])
    ),
    st.integers(0, 2**32 - 1).map(lambda value: b"\x2d" + value.to_bytes(4, "little")),
    st.binary(max_size=8).map(lambda content: delimited(6, content)),
    st.binary(max_size=8).map(lambda content: delimited(100, content)),
    # The same tag, longer than it has to be.
    st.binary(max_size=8).map(lambda content: b"\xa2\x86\x00" + delimited(100, content)[2:]),
    st.tuples(st.sampled_from(sorted(KINDS)), st.lists(PLANE_PART, max_size=5)).map(
        lambda plane: delimited(plane[0], b"".join(plane[1]))
    ),
    st.tuples(st.sampled_from([1, 20, 50, 54, 99, 100, 101]), st.binary(max_size=4)).map(
        lambda field: varint(field[0] << 3 | 3) + field[1] + varint(field[0] << 3 | 4)
    ),
    st.tuples(st.sampled_from([6, 7, 49, 51, 100, 101]), st.integers(0, 2**64 - 1)).map(
        lambda field: varint(field[0] << 3) + varint(field[1])
    ),
    st.sampled_from([delimited(54, b"\xa2\x06\x01\x00"), varint(49 << 3 | 1) + b"\xa2\x06" * 4]),
    st.binary(max_size=3),
)
"""A part of a frame in any encoding, most often a valid one."""


@given(
    message=st.one_of(st.binary(max_size=300), st.lists(PART, max_size=8).map(b"".join)),
    cut=st.integers(0, 9),
)
def test_fast_path_and_protobuf_agree_on_anything(message: bytes, cut: int) -> None:
    """The slice is a fast path only: what it accepts, protobuf accepts, with the same content."""
    tagged = message.replace(b"\x00", b"\xa2\x06")
    planes = {50: [b"", b"1234", b"\xa2\x06\x01\x00"], 51: [b"1", b"2", b"3"]}
    with_planes = encoded_block(block_of(planes=planes))
    for candidate in (
        message,
        message[: len(message) - cut],
        tagged,
        encoded() + message,
        message + encoded(),
        with_planes + message,
        message + with_planes,
        with_planes + message + encoded(),
    ):
        try:
            expected = pb.Frame.FromString(candidate)
        except DecodeError:
            with pytest.raises(BadFrame):
                frame.decode(candidate)
            continue
        found = frame.decode(candidate)
        assert found.tokens.tobytes() == expected.tokens
        assert (found.first_sample, found.first_row) == (expected.first_sample, expected.first_row)
        assert (found.row_count, found.checksum) == (expected.row_count, expected.checksum)
        assert (found.token_bytes, found.identity) == (expected.token_bytes, expected.identity)
        assert [
            (one.kind, one.row_lengths.tolist(), one.content.tobytes()) for one in found.planes
        ] == [
            (kind, list(getattr(expected, name).row_bytes), getattr(expected, name).content)
            for kind, name in sorted(KINDS.items())
            if expected.HasField(name)
        ]


def test_a_bit_flipped_anywhere_is_found() -> None:
    """No frame may be queued that is not what was asked for."""
    message = encoded()
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            read(bytes(damaged))


def test_a_bit_flipped_in_a_frame_with_planes_is_found_or_changes_nothing() -> None:
    """Planes' fingerprints are the reader's own: those of the frame are not looked at."""
    block = block_of(planes={50: [b"", b"1234", b"5678abcd"], 51: [b"1", b"2", b"3"]})
    message = encoded_block(block)
    unnoticed = 0
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            rows = frame.decode(bytes(damaged)).rows(frames_of([50, 51]), 6)
        except BadFrame:
            continue
        assert plain(rows) == plain(block)
        unnoticed += 1

    of_fingerprints = 2 * 8 * len(delimited(3, bytes(32)))
    assert unnoticed <= of_fingerprints


@pytest.mark.parametrize("sent", [(), (50,), (51,), (50, 51), (50, 51, 52)])
@pytest.mark.parametrize("wanted", [(), (50,), (51,), (50, 51), (50, 51, 52)])
def test_a_frame_has_the_planes_that_were_asked_for_and_no_other(
    sent: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    """Without its mask a row would be learned in full, in silence."""
    block = block_of(planes={kind: [b"1234"] * 3 for kind in sent})
    found = frame.decode(encoded_block(block))

    if sent == wanted:
        assert plain(found.rows(frames_of(wanted), 6)) == plain(block)
        return
    with pytest.raises(BadFrame, match="planes"):
        found.rows(frames_of(wanted), 6)


def test_a_plane_of_another_corpus_is_refused() -> None:
    """The tokens are the same, and so is the identity: only the plane differs."""
    message = encoded_block(block_of(planes={51: [b"1", b"2", b"3"]}))
    expected = replace(frames_of([51]), plane_fingerprints={51: bytes([7] * 32)})

    with pytest.raises(BadFrame, match="checksum"):
        frame.decode(message).rows(expected, 6)


@pytest.mark.parametrize(
    ("lengths", "content"),
    [
        ([1, 1], b"12"),
        ([1, 1, 1, 0], b"123"),
        ([1, 1, 1], b"12"),
        ([1, 1, 1], b"1234"),
        ([], b""),
        ([2**31, 2**31, 3], b"123"),
        ([2**32 - 1, 2**32 - 1, 5], b"123"),
    ],
)
def test_a_plane_whose_lengths_are_not_those_of_its_rows_is_refused(
    lengths: list[int], content: bytes
) -> None:
    """Before a length is used as one: it may lie far outside of the content."""
    message = pb.Frame.FromString(encoded_block(block_of(planes={51: [b"1", b"2", b"3"]})))
    message.loss_mask.row_bytes[:] = lengths
    message.loss_mask.content = content

    with pytest.raises(BadFrame, match="plane 51"):
        frame.decode(message.SerializeToString()).rows(frames_of([51]), 6)


def test_a_mask_moved_from_one_row_to_another_is_found() -> None:
    """The same bytes in all, cut otherwise."""
    message = pb.Frame.FromString(encoded_block(block_of(planes={50: [b"1234", b"", b""]})))
    message.document_starts.row_bytes[:] = [0, 4, 0]

    with pytest.raises(BadFrame, match="checksum"):
        frame.decode(message.SerializeToString()).rows(frames_of([50]), 6)


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
        frame.decode(encoded()).rows(frames_of(position=position), stream_row)


def test_a_frame_of_another_rank_is_refused_although_its_place_is_the_same() -> None:
    """Rank and world size are in no field of the frame; only the checksum knows them."""
    with pytest.raises(BadFrame, match="checksum"):
        frame.decode(encoded()).rows(frames_of(position=Position(1000, 4, 0, 3)), 6)


def test_a_frame_of_another_identity_is_refused() -> None:
    """Another corpus, order, seed or context length."""
    with pytest.raises(BadFrame, match="identity"):
        frame.decode(encoded()).rows(replace(frames_of(), identity=bytes(32)), 6)


def test_the_first_row_of_a_stream_needs_no_field_but_is_read_all_the_same() -> None:
    """Zeros are left out on the wire."""
    position = Position(0, 4)
    message = encoded_block(RowBlock(np.zeros((1, 6), dtype=np.uint16)), 0, position)

    rows = frame.decode(message).rows(frames_of(position=position), 0)

    assert rows.tokens.tolist() == [[0] * 6]


LISTED = SampleList(np.array([7, 2**63 - 1, 7, 0, 5, 1, 2, 3], dtype=np.int64))


@given(
    row_count=st.integers(1, 8),
    contents=CONTENTS,
    samples=st.lists(st.integers(0, 2**63 - 1), min_size=8, max_size=40),
    data=st.data(),
)
def test_a_frame_of_single_rows_says_where_it_begins_in_their_list(
    row_count: int, contents: dict[int, list[bytes]], samples: list[int], data: st.DataObject
) -> None:
    """Its checksum covers the list as a whole, and so which rows these are."""
    planes = {kind: found[:row_count] for kind, found in contents.items()}
    block, first = block_of(row_count, 2, planes), data.draw(st.integers(0, 8 - row_count))
    listed = SampleList(np.array(samples, dtype=np.int64))

    message = encoded_block(block, first, listed)

    parsed = pb.Frame.FromString(message)
    assert (parsed.first_sample, parsed.first_row, parsed.row_count) == (0, first, row_count)
    expected = [
        reference.Plane(kind, FINGERPRINTS[kind], [len(one) for one in found], b"".join(found))
        for kind, found in planes.items()
    ]
    assert parsed.checksum == reference.listed_checksum(
        IDENTITY, samples, first, row_count, parsed.tokens, expected or None
    )
    rows = frame.decode(message).rows(frames_of(sorted(planes), listed), first)
    assert plain(rows) == plain(block)


@pytest.mark.parametrize(
    ("samples", "first"),
    [
        ([7, 2**63 - 1, 7, 0, 5, 1, 2], 2),
        ([7, 2**63 - 1, 7, 0, 5, 1, 2, 4], 2),
        ([7, 2**63 - 1, 0, 7, 5, 1, 2, 3], 2),
        ([6, 2**63 - 1, 7, 0, 5, 1, 2, 3], 2),
        (LISTED.values.tolist(), 1),
    ],
)
def test_a_frame_of_another_list_of_rows_is_refused(samples: list[int], first: int) -> None:
    """A bit flipped in one sample gives good tokens of another row."""
    message = encoded_block(block_of(), 2, LISTED)
    listed = SampleList(np.array(samples, dtype=np.int64))

    with pytest.raises(BadFrame):
        frame.decode(message).rows(frames_of(position=listed), first)


def test_a_frame_of_batches_is_none_of_single_rows() -> None:
    """Also where both begin at sample 0 and row 0 with the same tokens."""
    batches, listed = Position(0, 3), SampleList(np.arange(3, dtype=np.int64))

    for sent, expected in ((batches, listed), (listed, batches)):
        with pytest.raises(BadFrame, match="checksum"):
            frame.decode(encoded_block(block_of(), 0, sent)).rows(frames_of(position=expected), 0)


def messages_of(block: RowBlock, stream_row: int = 6) -> list[bytes]:
    """The frames of a block, after a look at whether they hold it whole and in order."""
    context_length = block.tokens.shape[1] - 1
    frames = frames_of([one.kind for one in block.planes], context_length=context_length)
    messages = list(encode(frames, stream_row, block))
    row = 0
    for message in messages:
        found = frame.decode(message).rows(frames, stream_row + row)
        assert plain(found) == plain(block[row : row + len(found)])
        row += len(found)
    assert row == len(block)
    return messages


@pytest.mark.parametrize("row_lengths", [None, 0, 1, 300])
@pytest.mark.parametrize("missing_bytes", [1 << 16, 2048, 1024, 512, 128, 96, 64, 4, 0, -4, -MIB_4])
def test_rows_that_would_make_a_message_of_4_mib_or_more_go_as_several(
    missing_bytes: int, row_lengths: int | None
) -> None:
    """A client with gRPC's usual limit reads them, planes and headers included."""
    # Rows of 4 bytes where nothing else can make up the rest, so that each byte of headers counts.
    row_tokens = 2 if row_lengths is None else 512
    of_plane = 0 if row_lengths is None else row_lengths + len(varint(row_lengths))
    rows, rest = divmod(MIB_4 - missing_bytes, 2 * row_tokens + of_plane)
    tokens = np.arange(rows * row_tokens).astype(np.uint16).reshape(rows, row_tokens)
    contents = [b"x" * (row_lengths or 0)] * (rows - 1) + [b"y" * ((row_lengths or 0) + rest)]
    planes = () if row_lengths is None else (plane_of(50, contents),)

    messages = messages_of(RowBlock(tokens, planes))

    assert max(map(len, messages)) < MIB_4
    assert (len(messages) > 1) or missing_bytes > 0
    assert (len(messages) == 1) or missing_bytes < 1 << 16


def test_a_single_row_is_never_cut_however_long_it_is_with_its_planes() -> None:
    """Its neighbours go in frames of their own, all below 4 MiB."""
    tokens = np.arange(8 * 4, dtype=np.uint16).reshape(8, 4)
    contents = [b""] * 8
    contents[5] = b"x" * (MIB_4 + 1)

    messages = messages_of(RowBlock(tokens, (plane_of(50, contents),)))

    assert sum(len(message) > MIB_4 for message in messages) == 1
    assert sum(map(len, messages)) < MIB_4 + 10_000


def test_a_row_of_tokens_of_more_than_4_mib_is_one_message() -> None:
    """A reader that asks for such rows raises its limit."""
    rows = np.zeros((2, MIB_4), dtype=np.uint16)

    assert [len(message) > MIB_4 for message in messages_of(RowBlock(rows))] == [True, True]


def test_many_rows_with_hardly_any_bytes_go_as_several_for_their_lengths() -> None:
    """A million rows without a document in any still say a million times that there is none."""
    rows = 1_100_000
    tokens = np.zeros((rows, 2), dtype=np.uint16)
    nothing = Plane(50, np.zeros(rows, dtype=np.uint32), np.zeros(0, dtype=np.uint8))

    messages = messages_of(RowBlock(tokens, (nothing,)))

    assert len(messages) > 1
    assert max(map(len, messages)) < MIB_4


def test_a_frame_holds_whole_rows_and_at_least_one() -> None:
    """A row is never cut, however long."""
    assert frame.rows_per_frame(1 << 20, 4098) == 255
    assert frame.rows_per_frame(1 << 20, 1 << 20) == 1
    assert frame.rows_per_frame(1 << 20, 1 << 29) == 1
