"""The inverse of a plan: every place of every epoch has its sample, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stages import SEEDS, AskedStage, asked_stages, stages_of
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.sampling.inverse import SampleRange
from tokenfeed.sampling.mixture_v1 import locate, samples_of
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.stage import Share, Source, Stage
from tokenfeed.stream.stream import Stream

COUNTS = [1, 2, 3, 63, 64, 65, 97, 1009, 2**30 + 1, 2**31 - 1, 2**53 + 111, 2**62 + 1, 2**63 - 1]
WITH_EPOCHS = [
    order for order in orders.ORDERS.values() if order.HAS_EPOCHS and not order.BLOCK_TOKENS
]


@pytest.mark.parametrize("order", WITH_EPOCHS, ids=lambda order: order.NAME)
@given(
    count=st.one_of(st.sampled_from(COUNTS), st.integers(1, 2**63 - 1)), seed=SEEDS, data=st.data()
)
def test_the_index_of_a_place_is_where_the_order_has_it(
    order: orders.Order, count: int, seed: int, data: st.DataObject
) -> None:
    """For any number of places, seed and epoch, also where 64 bits are nearly full."""
    epochs = st.integers(0, (2**63 - 1) // count)
    drawn = data.draw(st.lists(st.tuples(st.integers(0, count - 1), epochs), min_size=1))
    index = np.array([i for i, epoch in drawn if epoch * count + i < 2**63], dtype=np.int64)
    epoch = np.array([epoch for i, epoch in drawn if epoch * count + i < 2**63], dtype=np.int64)
    places = order.places(epoch * count + index, seed, count)

    assert order.indices(places, epoch, seed, count).tolist() == index.tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1009, 4096])
def test_a_whole_epoch_is_inverted_at_once_and_place_by_place(count: int) -> None:
    """Many places of one epoch take another way, by a table."""
    order = orders.find("shuffled-1")
    index = np.arange(count)
    for epoch in (0, 3):
        places = order.places(epoch * count + index, 7, count)
        epochs = np.full(count, epoch)
        assert (order.indices(places, epochs, 7, count) == index).all()
        alone = [
            int(order.indices(places[i : i + 1], epochs[:1], 7, count)[0])
            for i in range(0, count, 17)
        ]
        assert alone == index[::17].tolist()


def test_a_draw_with_replacement_has_no_inverse() -> None:
    """A place may come often or never: it is looked for, sample by sample."""
    with pytest.raises(InvalidRequest, match="has no epochs"):
        orders.find("random-1").indices(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, 5)


@given(asked_stages(), SEEDS, st.integers(1, 3))
def test_samples_of_a_source_are_where_the_mixture_has_them(
    asked: list[AskedStage], seed: int, blocks: int
) -> None:
    """In each stage and block, whatever the weights."""
    for stage in stages_of(asked):
        samples = stage.first_sample + np.arange(blocks * stage.block_size)
        source, own = locate(stage, seed, samples)
        for number in np.unique(source).tolist():
            at = source == number
            assert samples_of(stage, seed, number, own[at]).tolist() == samples[at].tolist()


def test_the_last_samples_of_a_mixture_are_found() -> None:
    """Its last block reaches beyond 2^63, where the arithmetic of int64 ends."""
    begin = 2**63 - 12
    stage = Stage(5, begin, 4, (Share(0, 3, 2**40), Share(1, 7, 2**62)))
    samples = begin + np.arange(12)
    source, own = locate(stage, 9, samples)

    for number in (0, 1):
        at = source == number
        assert samples_of(stage, 9, number, own[at]).tolist() == samples[at].tolist()


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(1, 5),
    SEEDS,
    st.sampled_from(["shuffled-1", "sequential-1"]),
    st.integers(0, 400),
    st.integers(0, 300),
)
def test_places_of_a_dataset_have_all_of_their_samples(
    counts: list[int], context_length: int, seed: int, name: str, first: int, size: int
) -> None:
    """All within a range of samples, and none beside it."""
    shape = Shape(np.array([*counts, context_length + 1]))
    stream = Stream.of_dataset("", orders.find(name), seed, context_length)
    wanted = SampleRange.of(stream, 0, shape, first, first + size)

    require_all_found(stream, wanted, [shape], 0, range(first, first + size))


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 400), st.integers(0, 400), st.integers(1, 4), st.integers(0, 100))
def test_places_have_all_of_their_samples_from_any_base_on(
    seed: int, begin: int, base: int, weight: int, size: int
) -> None:
    """Also of a source that has more samples behind it than the stream has."""
    shape = Shape(np.array([30, 9]))
    source = Source("d", orders.find("shuffled-1"), 5, 3)
    stream = Stream(seed, (source,), (Stage(1, begin, 4, (Share(3, weight, base),)),))
    wanted = SampleRange.of(stream, 0, shape, begin + 7, begin + 7 + size)

    require_all_found(stream, wanted, [shape], 0, range(begin + 7, begin + 7 + size))


def test_own_samples_at_the_end_of_64_bits_have_their_samples() -> None:
    """A base below the stage's first sample, and above it, in a stage of one source."""
    for begin, base in ((2**63 - 20, 3), (3, 2**63 - 20)):
        stage = Stage(1, begin, 4, (Share(0, 1, base),))
        own = base + np.arange(10)
        assert samples_of(stage, 9, 0, own).tolist() == list(range(begin, begin + 10))


@settings(max_examples=60)
@given(asked_stages(sources=3), SEEDS, st.data())
def test_places_of_a_source_have_all_of_their_samples_in_a_stage(
    asked: list[AskedStage], seed: int, data: st.DataObject
) -> None:
    """A range may begin and end within a block, and a source may be paused."""
    shapes = [Shape(np.array(counts)) for counts in ([30], [9, 14], [25])]
    names = ["shuffled-1", "sequential-1", "shuffled-1"]
    sources = tuple(
        Source(f"d{number}", orders.find(name), number + 5, number)
        for number, name in enumerate(names)
    )
    stage = data.draw(st.sampled_from(stages_of(asked, 4)))
    stream, _ = Stream(seed, sources, (stage,)).at(stage.first_sample)
    shapes = [shapes[number] for number in stream.numbers]
    first = stage.first_sample + data.draw(st.integers(0, 3 * stage.block_size))
    samples = range(first, first + data.draw(st.integers(0, 3 * stage.block_size)))
    for number, shape in enumerate(shapes):
        wanted = SampleRange.of(stream, number, shape, samples.start, samples.stop)
        require_all_found(stream, wanted, shapes, number, samples)


def require_all_found(
    stream: Stream, wanted: SampleRange, shapes: list[Shape], number: int, samples: range
) -> None:
    """Require that all places, in all epochs, have just the planned samples."""
    grid = [(place, epoch) for epoch in wanted.epochs for place in range(wanted.place_count)]
    places, epochs = np.array(grid, dtype=np.int64).reshape(-1, 2).T.copy()
    found = wanted.of_places(places, epochs)
    planned = plan(stream, shapes, np.array(samples, dtype=np.int64))
    own = planned.row_source == number
    assert sorted(found.samples.tolist()) == np.array(samples)[own].tolist()
    again = plan(stream, shapes, found.samples)
    windows = shapes[number].places(stream.context_length, has_epochs=True)
    place = windows.firsts[again.shard] + again.token_offset // windows.stride
    assert place.tolist() == places[found.at].tolist()
    assert (found.own_samples // wanted.place_count).tolist() == epochs[found.at].tolist()


def test_samples_before_the_stage_are_refused() -> None:
    """They are of another stage, which has other weights."""
    source = Source("d", orders.find("shuffled-1"), 1)
    stream = Stream(1, (source,), (Stage(1, 10, 4, (Share(0, 1, 5),)),))

    with pytest.raises(InvalidRequest, match="9 is below 10"):
        SampleRange.of(stream, 0, Shape(np.array([30])), 9, 20)
