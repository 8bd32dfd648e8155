"""Rows with their planes: what is cut out of a block keeps both together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.wire.row_block import Plane, RowBlock

CONTENTS = st.lists(st.binary(max_size=9), max_size=8)


def plane_of(kind: int, contents: list[bytes]) -> Plane:
    """Content of each row -> a plane."""
    lengths = np.array([len(content) for content in contents], dtype=np.uint32)
    return Plane(kind, lengths, np.frombuffer(b"".join(contents), dtype=np.uint8))


def contents_of(plane: Plane) -> list[bytes]:
    """The way back, one row at a time."""
    ends = [sum(plane.row_lengths.tolist()[:row]) for row in range(plane.row_lengths.size + 1)]
    content = plane.content.tobytes()
    assert ends[-1] == len(content)
    return [content[first:end] for first, end in pairwise(ends)]


def block_of(contents: list[bytes]) -> RowBlock:
    """Row r has the tokens 3 r, 3 r + 1 and 3 r + 2, and planes of these contents."""
    tokens = np.arange(3 * len(contents), dtype=np.uint16).reshape(-1, 3)
    back = [content[::-1] * 2 for content in contents]
    return RowBlock(tokens, (plane_of(50, contents), plane_of(51, back)))


@given(contents=CONTENTS, data=st.data())
def test_a_slice_has_tokens_and_planes_of_the_same_rows(
    contents: list[bytes], data: st.DataObject
) -> None:
    """A mask that is one row off teaches prompts instead of answers."""
    bound = st.none() | st.integers(-10, 10)
    part = slice(data.draw(bound), data.draw(bound))
    rows = list(range(len(contents)))[part]

    found = block_of(contents)[part]

    assert len(found) == len(rows)
    assert found.tokens.tolist() == [[3 * row, 3 * row + 1, 3 * row + 2] for row in rows]
    assert [plane.kind for plane in found.planes] == [50, 51]
    assert contents_of(found.planes[0]) == contents[part]
    assert contents_of(found.planes[1]) == [content[::-1] * 2 for content in contents[part]]
    assert contents_of(found[1:].planes[0]) == contents[part][1:]


@given(contents=CONTENTS)
def test_rows_without_a_plane_get_one_without_bytes(contents: list[bytes]) -> None:
    """A batch may begin in a stage that has a mask, and end in one that has none."""
    block = block_of(contents)

    found = block.with_planes((50, 51, 52, 53))

    assert [plane.kind for plane in found.planes] == [50, 51, 52, 53]
    assert found.planes[:2] == block.planes
    for plane in found.planes[2:]:
        assert contents_of(plane) == [b""] * len(contents)
    assert found.tokens is block.tokens
    assert block.with_planes((50, 51)) is block


def test_a_slice_copies_neither_tokens_nor_content() -> None:
    """A block is cut for each batch; its bytes stay where they are."""
    block = block_of([b"abc", b"", b"defg", b"h"])

    part = block[1:3]

    assert np.shares_memory(part.tokens, block.tokens)
    assert np.shares_memory(part.planes[0].content, block.planes[0].content)


def test_rows_of_more_than_4_gib_of_a_plane_are_counted_without_overflow() -> None:
    """Lengths are of 32 bits, their sums are not."""
    lengths = np.full(4, 2**31, dtype=np.uint32)
    plane = Plane(50, lengths, np.broadcast_to(np.uint8(7), 4 * 2**31))

    assert plane[3:].content.size == 2**31
    assert plane[1:].content.size == 3 * 2**31
