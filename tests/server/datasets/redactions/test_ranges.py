"""Ranges of tokens: merged, checked, and hashed as docs/protocol.md says."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.server.datasets.redactions.ranges import RedactionList, TokenRanges

TRIPLES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)).map(
        lambda one: (one[0], one[1], one[1] + one[2])
    ),
    max_size=12,
)


def tokens(ranges: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(file, token) for file, first, end in ranges for token in range(first, end)}


@given(TRIPLES, TRIPLES, st.randoms())
def test_merged_ranges_have_the_same_tokens_in_any_order(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]], random: object
) -> None:
    """The hash of a list must not depend on the order of the arguments."""
    merged = TokenRanges.of(one).union(TokenRanges.of(other))
    shuffled = [*other, *one]
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert tokens(merged.triples()) == tokens([*one, *other])
    assert merged.triples() == TokenRanges.of(shuffled).triples()
    assert merged.token_count == len(tokens(merged.triples()))


@given(TRIPLES, st.integers(0, 40), st.integers(1, 40))
def test_tokens_of_a_part_are_marked_and_blocks_have_all_of_them(
    given_ranges: list[tuple[int, int, int]], first: int, count: int
) -> None:
    """Files are read in blocks, whatever is between their ranges."""
    ranges = TokenRanges.of(given_ranges)
    expected = tokens(given_ranges)

    for file in range(4):
        marked = ranges.contains(file, first, count).tolist()
        assert marked == [(file, first + place) in expected for place in range(count)]
    with pytest.MonkeyPatch.context() as context:
        context.setattr("tokenfeed.server.datasets.redactions.ranges.PIECE_BYTES", 8)
        blocks = list(ranges.blocks(2))
    within = [(file, byte) for file, begin, end in blocks for byte in range(begin, end)]
    assert len(set(within)) == len(within)
    assert set(within) >= {(file, 2 * token) for file, token in expected}
    assert all(end - begin <= 8 and begin % 2 == 0 for _, begin, end in blocks)


def test_ranges_that_touch_become_one() -> None:
    """The protocol hashes ranges that do not touch."""
    assert TokenRanges.of([(0, 4, 6), (1, 0, 1), (0, 6, 9)]).triples() == [(0, 4, 9), (1, 0, 1)]


@pytest.mark.parametrize(
    "ranges",
    [[(0, 5, 5)], [(0, 6, 5)], [(0, -1, 5)], [(-1, 0, 5)], [(0, 0, 1 << 63)], [(0, 1)], [("a", 0)]],
)
def test_what_is_no_range_is_refused(ranges: list[tuple[int, ...]]) -> None:
    """They come from files and command lines."""
    with pytest.raises(ValueError, match="have"):
        TokenRanges.of(ranges)


def test_ranges_as_they_are_stored_have_to_ascend() -> None:
    """A value that exists is valid."""
    columns = np.array([[0, 0], [4, 6], [6, 9]])
    with pytest.raises(ValueError, match="neither overlap nor touch"):
        TokenRanges(*columns)


def test_ranges_of_huge_files_are_merged_without_overflow() -> None:
    """All files are seen as one sequence of tokens, whose length has to fit into int64."""
    far = (1 << 62) - 2
    assert TokenRanges.of([(1, far - 1, far), (0, far - 1, far)]).triples()[1][1] == far - 1
    with pytest.raises(ValueError, match="2\\^63"):
        TokenRanges.of([(file, 2 * far - 1, 2 * far) for file in range(2)])


def test_ranges_outside_of_the_files_are_found() -> None:
    """They would be another dataset's."""
    counts = np.array([10, 3])
    TokenRanges.of([(0, 0, 10), (1, 2, 3)]).require_within(counts)
    with pytest.raises(ValueError, match="end at token 4 of file 1, which has only 3"):
        TokenRanges.of([(1, 2, 4)]).require_within(counts)
    with pytest.raises(ValueError, match="are in file 2, but there are only 2"):
        TokenRanges.of([(2, 0, 1)]).require_within(counts)


def test_a_list_has_the_published_hash() -> None:
    """A stream names it by that, and other implementations compute it."""
    found = RedactionList.of(3, TokenRanges.of([(1, 7, 9), (0, 2, 5)]))
    text = "tokenfeed-redactions-1\nfill=3\nranges=2\nrange=0 2 5\nrange=1 7 9\n"

    assert found.hash == hashlib.sha256(text.encode()).digest()
