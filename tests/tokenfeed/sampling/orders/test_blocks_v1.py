"""`blocks-1` against brute force: blocks of 64 tokens, so that whole epochs are seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import reference
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.sampling.inverse import SampleRange
from tokenfeed.sampling.orders.blocks_v1 import BlocksOfFiles
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.schedule import first_stage
from tokenfeed.stream.stage import Source
from tokenfeed.stream.stream import Stream

SIZE = 64
BLOCKS = orders.find("blocks-1")
SEEDS = st.integers(0, 2**64 - 1)
LENGTHS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
GROUPS = st.sampled_from([1, 2, 3, 4, 16, 2**20])
FILES = st.lists(
    st.one_of(
        st.sampled_from([0, 1, 2, SIZE - 1, SIZE, SIZE + 1, SIZE + 2, 2 * SIZE, 3 * SIZE + 1]),
        st.integers(0, 12 * SIZE),
    ),
    min_size=1,
    max_size=12,
)
"""Files below a block, of exactly a block with its last target and without it, and others."""


class SmallBlocks(BlocksOfFiles):
    """The same order with smaller blocks."""

    BLOCK_TOKENS = SIZE


def counts_of(files: Sequence[int], length: int) -> list[int]:
    return reference.place_counts("blocks-1", list(files), length)


def small(files: Sequence[int], length: int, group: int) -> SmallBlocks:
    return SmallBlocks(np.array(files, dtype=np.int64), length, group)


def windows_of(files: Sequence[int], length: int, group: int, samples: np.ndarray) -> list[tuple]:
    found = small(files, length, group).windows(samples, 7)
    return list(zip(*(each.tolist() for each in found), strict=True))


@settings(max_examples=40)
@given(files=FILES, length=LENGTHS, group=GROUPS, seed=SEEDS, epoch=st.integers(0, 2**40))
def test_an_epoch_visits_every_window_once_and_the_inverse_finds_each(
    files: list[int], length: int, group: int, seed: int, epoch: int
) -> None:
    """Nothing lost, nothing repeated, and `find` names the sample that a window had."""
    count = sum(counts_of(files, length))
    order = small(files, length, group)
    index = np.arange(count)

    places = order.places(epoch * count + index, seed, count) if count else index

    assert np.array_equal(np.sort(places), index)
    epochs = np.full(count, epoch)
    assert order.indices(places, epochs, seed, count).tolist() == index.tolist()


@settings(max_examples=40)
@given(files=FILES, length=LENGTHS, group=GROUPS, seed=SEEDS, epoch=st.integers(0, 2**40))
def test_a_group_has_the_tokens_of_its_samples_and_no_others(
    files: list[int], length: int, group: int, seed: int, epoch: int
) -> None:
    """Who fetches a group ahead has all that its rows need, and has fetched nothing for nothing."""
    count = sum(counts_of(files, length))
    order, sample = small(files, length, group), epoch * count
    while sample < (epoch + 1) * count:
        found = order.group_at(sample, seed)
        assert found.first_sample == sample < found.end_sample
        assert order.group_at(found.end_sample - 1, seed).first_sample == sample
        sample = found.end_sample
        windows = order.windows(np.arange(found.first_sample, sample), seed)
        expected = {*zip(*(each.tolist() for each in windows), strict=True)}
        ranges = zip(*(each.tolist() for each in found[2:]), strict=True)
        parts = [(f, at) for f, first, n in ranges for at in range(first, first + n, length)]
        assert len(parts) == len(expected)
        assert {*parts} == expected
    assert sample == (epoch + 1) * count


@settings(max_examples=40)
@given(files=FILES, length=LENGTHS, group=GROUPS, seed=SEEDS, epoch=st.sampled_from([0, 1, 2**40]))
def test_every_window_is_where_the_second_implementation_has_it(
    files: list[int], length: int, group: int, seed: int, epoch: int
) -> None:
    """Two readings of the page agree, over a part of an epoch and the begin of the next."""
    count = sum(counts_of(files, length))
    first = epoch * count
    samples = sorted({*range(min(6, count)), *range(count // 2, count, max(1, count // 9)), count})
    samples = [first + sample for sample in samples] if count else []

    file, token = small(files, length, group).windows(np.array(samples, dtype=np.int64), seed)

    found = list(zip(file.tolist(), token.tolist(), strict=True))
    assert found == [
        reference.blocks_window(seed, files, length, group, sample, SIZE) for sample in samples
    ]


@settings(max_examples=40)
@given(files=FILES, lengths=st.tuples(LENGTHS, LENGTHS), group=GROUPS, epoch=st.integers(0, 3))
def test_a_group_has_all_windows_of_its_blocks_and_the_same_blocks_at_every_context_length(
    files: list[int], lengths: tuple[int, int], group: int, epoch: int
) -> None:
    """A reader fetches each block once; and a run may go on with the next group at another T."""
    blocks = sum(max(0, n - 1) // SIZE for n in files)
    groups = -(-blocks // group)
    found = []
    for length in lengths:
        count, each = sum(counts_of(files, length)), SIZE // length
        seen = windows_of(files, length, group, epoch * count + np.arange(count))
        begins = [
            reference.part_begin(blocks, group, j) * each if groups else 0
            for j in range(groups + 1)
        ]
        parts = [seen[begins[j] : begins[j + 1]] for j in range(groups)]
        for part in parts:
            at = {(file, token // SIZE) for file, token in part}
            assert len(at) <= group
            assert sorted(part) == sorted(
                (file, block * SIZE + number * length)
                for file, block in at
                for number in range(each)
            )
        assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= each
        found.append([{(file, token // SIZE) for file, token in part} for part in parts])
        # What is left comes behind all groups.
        rests = {(file, token // SIZE) for file, token in seen[blocks * each :]}
        assert all(block == (files[file] - 1) // SIZE for file, block in rests)

    assert found[0] == found[1]


@settings(max_examples=40)
@given(files=FILES, length=LENGTHS, group=GROUPS, first=st.integers(0, 500), seed=SEEDS)
def test_samples_planned_together_and_one_by_one_are_the_same(
    files: list[int], length: int, group: int, first: int, seed: int
) -> None:
    """A plan may begin and end anywhere: in a group, in a rest, in the next epoch."""
    count = sum(counts_of(files, length))
    order = small(files, length, group)
    samples = np.arange(first, first + 20 if count else first)

    together = order.places(samples, seed, count) if count else samples

    alone = [int(order.places(samples[i : i + 1], seed, count)[0]) for i in range(samples.size)]
    assert together.tolist() == alone


def test_blocks_of_a_large_group_are_found_with_and_without_tables() -> None:
    """Samples that need many blocks at once are no reason for other windows."""
    order = BlocksOfFiles(np.full(70, 10**9 + 7), 2**19, 2**20)
    samples = np.arange(0, 130_000, 37)

    together = order.windows(samples, 5)

    alone = [order.windows(samples[i : i + 1], 5) for i in range(0, samples.size, 50)]
    assert [(int(f[0]), int(t[0])) for f, t in alone] == list(
        zip(together[0][::50].tolist(), together[1][::50].tolist(), strict=True)
    )


@settings(max_examples=40)
@given(seed=SEEDS, sample=st.integers(0, 2**63 - 1))
def test_every_sample_below_2_to_the_63_has_a_window_and_is_found_again(
    seed: int, sample: int
) -> None:
    """64 bits are nearly full there: the numbers of epochs and groups are multiplied."""
    files = np.array([2**40 + 1, 2**20, 5 * 2**19 + 1], dtype=np.int64)
    order = BlocksOfFiles(files, 2048, 16)
    count = sum(counts_of(files.tolist(), 2048))

    places = order.places(np.array([sample]), seed, count)

    assert 0 <= places[0] < count
    found = order.indices(places, np.array([sample // count]), seed, count)
    assert found.tolist() == [sample % count]


def test_no_two_epochs_seeds_or_group_sizes_have_the_same_windows() -> None:
    """What is in the identity makes rows."""
    files = [40 * SIZE + 9, 17, 30]
    count = sum(counts_of(files, 8))

    found = {
        tuple(small(files, 8, group).places(epoch * count + np.arange(count), seed, count).tolist())
        for group in (4, 8, 16)
        for seed in (0, 1, 2**63)
        for epoch in (0, 1, 2**40)
    }

    assert len(found) == 27


def test_a_mixture_has_the_windows_that_each_source_has_alone() -> None:
    """With many sources most orders are computed in one pass, and this one is not."""
    sources = tuple(
        Source(f"s{n}", BLOCKS if n % 2 else orders.find("shuffled-1"), n, n) for n in range(6)
    )
    shapes = [Shape(np.array([2**21 + 5 + n, 3 * 2**19 + 1, 70_000])) for n in range(6)]
    stream = Stream(7, sources, (first_stage(4096, dict.fromkeys(range(6), 3)),))

    spans = plan(stream, shapes, np.arange(360))

    for number, (source, shape) in enumerate(zip(sources, shapes, strict=True)):
        alone = Stream.of_dataset("", source.order, source.seed, 4096)
        own = plan(alone, [shape], np.arange(60))
        at = np.flatnonzero(spans.source == number)
        pairs = [
            (found.shard[rows], found.token_offset[rows])
            for found, rows in ((spans, at), (own, np.arange(60)))
        ]
        assert sorted(zip(*(each.tolist() for each in pairs[0]), strict=True)) == sorted(
            zip(*(each.tolist() for each in pairs[1]), strict=True)
        )


def test_the_samples_of_places_are_found_through_a_stream() -> None:
    """The way of `find` and Locate, over several epochs."""
    shape = Shape(np.array([3 * 2**19 + 70_000, 2**19 + 1, 90_000]))
    stream = Stream.of_dataset("", BLOCKS, 3, 2**14, group_blocks=16)
    samples = np.arange(300)
    spans = plan(stream, [shape], samples)
    places = shape.places(2**14, has_epochs=True)
    at = places.firsts[spans.shard] + spans.token_offset // 2**14

    wanted = SampleRange.of(stream, 0, shape, 0, 300)
    found = wanted.of_places(at, samples // places.place_count)

    assert found.samples.tolist() == samples.tolist()


@pytest.mark.parametrize("length", [3000, 3, 2**19 - 1, 2**20, 2**19 + 1])
def test_a_context_length_that_does_not_divide_a_block_is_refused(length: int) -> None:
    """Windows would cross blocks. Also one that is longer than a block."""
    with pytest.raises(InvalidRequest, match=rf"context_length: {length} does not divide 524288"):
        Stream.of_dataset("", BLOCKS, 7, length)


@pytest.mark.parametrize("group_blocks", [1, 8, 17, 2**21, -16])
def test_a_group_that_is_no_power_of_two_in_its_range_is_refused(group_blocks: int) -> None:
    """The identity has it, so there is one way to write each."""
    with pytest.raises(InvalidRequest, match=r"group_blocks: .* is not a power of two in \[16, "):
        Source("", BLOCKS, 7, group_blocks=group_blocks)


def test_groups_of_another_order_are_refused_by_name() -> None:
    """They would be in no identity."""
    with pytest.raises(InvalidRequest, match=r"group_blocks: is 16, but shuffled-1 has no groups"):
        Source("", orders.find("shuffled-1"), 7, group_blocks=16)


def test_rows_that_were_packed_already_are_refused() -> None:
    """Their windows do not lie at multiples of T."""
    shape = Shape(np.array([2049 * 600]), row_tokens=2049)
    stream = Stream.of_dataset("", BLOCKS, 7, 2048)

    with pytest.raises(InvalidRequest, match=r"order: blocks-1 reads blocks of tokens, but the"):
        plan(stream, [shape], np.arange(3))


def test_the_order_has_no_place_before_it_knows_the_files() -> None:
    """A number of places is not enough, and a wrong place would be a wrong row."""
    zeros = np.zeros(1, dtype=np.int64)
    for ask in (
        lambda: BLOCKS.places(zeros, 7, 5),
        lambda: BLOCKS.places_among(zeros, zeros, [7], [5]),
        lambda: BLOCKS.indices(zeros, zeros, 7, 5),
    ):
        with pytest.raises(InvalidRequest, match="only where all files are known"):
            ask()
