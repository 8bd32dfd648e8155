"""The samples of a mixture: every source's own come once each, whatever the weights become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stages import SEEDS, AskedStage, asked_stages, stages_of
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture_v1 import counts_at, locate, locate_all
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus, Share, Source, Stage
from tokenfeed.stream.stream import Stream

T = 3
ANY_LENGTH = tuple(name for name, each in orders.OF_WINDOWS.items() if not each.BLOCK_TOKENS)
"""Orders of windows of any context length."""


def stream_of(
    seed: int,
    stages: Sequence[Stage],
    named: Sequence[str] = ("shuffled-1",),
    seeds: int = 7,
) -> Stream:
    """Sources with orders and seeds in turn."""
    numbers = sorted({share.source for stage in stages for share in stage.shares})
    sources = tuple(
        Source(f"s{number}", orders.find(named[number % len(named)]), seeds + number, number)
        for number in numbers
    )
    return Stream(seed, sources, tuple(stages))


def samples_of(stages: Sequence[Stage], blocks: int) -> np.ndarray:
    """All samples up to this many blocks of the last stage."""
    return np.arange(stages[-1].first_sample + blocks * stages[-1].block_size)


@given(asked_stages(), SEEDS, st.integers(1, 4))
def test_each_source_s_own_samples_come_once_each_without_a_gap(
    asked: list[AskedStage], seed: int, blocks: int
) -> None:
    """Across blocks and stages: so it visits all of its windows."""
    stages = stages_of(asked)

    source, own = locate_all(stream_of(seed, stages), samples_of(stages, blocks))

    for number, weight, base in stages[-1].shares:
        count = base + blocks * weight
        assert sorted(own[source == number].tolist()) == list(range(count))


@given(asked_stages(), SEEDS, st.integers(0, 3))
def test_every_whole_block_has_exactly_the_asked_shares(
    asked: list[AskedStage], seed: int, block: int
) -> None:
    """Drawing would miss them by the square root of the samples."""
    for stage in stages_of(asked):
        first = stage.first_sample + block * stage.block_size
        samples = np.arange(first, first + stage.block_size)

        place, _ = locate(stage, seed, samples)

        weights = [share.weight for share in stage.shares]
        assert np.bincount(place, minlength=len(weights)).tolist() == weights


@given(asked_stages(), SEEDS, st.integers(1, 3))
def test_a_stage_changes_nothing_before_it(asked: list[AskedStage], seed: int, blocks: int) -> None:
    """Neither a sample nor an identity: what was trained on stays what it was."""
    before, after = stages_of(asked[:-1] or asked), stages_of(asked)
    samples = samples_of(before, blocks)
    if len(after) > len(before):
        samples = samples[: after[-1].first_sample]
    one, other = stream_of(seed, before), stream_of(seed, after)

    for found, expected in zip(locate_all(other, samples), locate_all(one, samples), strict=True):
        assert np.array_equal(found, expected)
    corpora = {number: Corpus(bytes([number]) * 32) for number in other.numbers}
    one, other = one.known(corpora), other.known(corpora)
    for stage in before:
        assert other.identity(stage.first_sample) == one.identity(stage.first_sample)


@given(asked_stages(), SEEDS, st.integers(1, 7), st.integers(1, 7))
def test_the_ranks_together_read_what_one_would(
    asked: list[AskedStage], seed: int, world_size: int, batch_size: int
) -> None:
    """Whatever their number, also if a stage begins in the middle of a batch."""
    stream = stream_of(seed, stages_of(asked))
    rows = 3 * batch_size
    found = {}
    for rank in range(world_size):
        samples = Position(0, batch_size, rank, world_size).samples(0, rows)
        located = locate_all(stream, samples)
        places = zip(*(each.tolist() for each in located), strict=True)
        found |= dict(zip(samples.tolist(), places, strict=True))

    alone = locate_all(stream, np.arange(rows * world_size))

    assert [found[sample] for sample in sorted(found)] == list(
        zip(*(each.tolist() for each in alone), strict=True)
    )


@settings(max_examples=60)
@given(st.data(), SEEDS, st.sampled_from([1, 3, 4, 5, 9]))
def test_a_source_reads_in_a_mixture_what_it_would_read_alone(
    data: st.DataObject, seed: int, sources: int
) -> None:
    """By its own order and seed, of its own files, of few windows or many."""
    stages = stages_of(data.draw(asked_stages(sources)), T)
    stream = stream_of(seed, stages, ANY_LENGTH)
    files = st.lists(st.integers(0, 900), min_size=1, max_size=4).filter(lambda n: max(n) > T)
    shapes = [Shape(np.array(data.draw(files))) for _ in range(sources)]
    samples = samples_of(stages, 2)
    source, own = locate_all(stream, samples)
    for place, stage in enumerate(stages):
        end = stream.end_of(place) or len(samples)
        here = slice(stage.first_sample, end)
        alone, _ = stream.at(stage.first_sample)

        spans = plan(alone, [shapes[number] for number in alone.numbers], samples[here])

        numbers = np.array(alone.numbers)[spans.source]
        assert np.array_equal(numbers, source[here])
        for number in set(numbers.tolist()):
            at = numbers == number
            one = Stream.of_dataset("", stream.sources[number].order, 7 + number, T)
            expected = plan(one, [shapes[number]], own[here][at])
            assert np.array_equal(spans.shard[at], expected.shard)
            assert np.array_equal(spans.token_offset[at], expected.token_offset)


@given(SEEDS, st.integers(0, 2**62), st.integers(0, 2**62), st.sampled_from(ANY_LENGTH))
def test_a_stage_begins_with_the_base_of_each_source_wherever_that_is(
    seed: int, first_sample: int, base: int, order: str
) -> None:
    """A stage of another context length has bases of its own: they follow from no stage before."""
    shape = Shape(np.array([90, 41]))
    plain = Stage(1, first_sample, T, (Share(0, 1, base),))
    pair = Stage(1, first_sample, T, (Share(0, 2, base), Share(1, 1, 5)))
    samples = first_sample + np.arange(30)
    alone = plan(Stream.of_dataset("", orders.find(order), 7, T), [shape], base + np.arange(30))

    found = plan(stream_of(seed, [plain], (order,)), [shape], samples)
    mixed = plan(stream_of(seed, [pair], (order,)), [shape, shape], samples)

    assert np.array_equal(found.shard, alone.shard)
    assert np.array_equal(found.token_offset, alone.token_offset)
    at, (_, own) = mixed.source == 0, locate(pair, seed, samples)
    windows = np.stack([alone.shard, alone.token_offset])[:, own[at] - base]
    assert np.array_equal(np.stack([mixed.shard, mixed.token_offset])[:, at], windows)


def test_a_source_of_weight_1_alone_is_read_in_its_own_order() -> None:
    """One dataset is a mixture of one, and costs no permutation of blocks."""
    stage = Stage(0, 0, T, (Share(0, 1, 0),))
    samples = np.array([0, 1, 2**53 + 1, 2**63 - 1])

    place, own = locate(stage, 2**64 - 1, samples)

    assert place.tolist() == [0] * 4
    assert own.tolist() == samples.tolist()
    # So is one whose others have paused, from its base on.
    alone = Stage(4, 10, T, (Share(0, 0, 3), Share(5, 1, 700), Share(6, 0, 9)))
    place, own = locate(alone, 7, np.arange(10, 15))
    assert (place.tolist(), own.tolist()) == ([1] * 5, list(range(700, 705)))
    # One source of weight 3 is another stream: it is permuted within blocks of three.
    tripled = Stage(0, 0, T, (Share(0, 3, 0),))
    _, own = locate(tripled, 7, np.arange(9))
    assert own.tolist() != list(range(9))
    assert sorted(own.tolist()) == list(range(9))


@given(asked_stages(), SEEDS, st.integers(0, 40))
def test_the_samples_of_each_source_before_a_sample_are_counted(
    asked: list[AskedStage], seed: int, since: int
) -> None:
    """A stage that begins there with other rows goes on from these."""
    stage = stages_of(asked)[-1]
    sample = stage.first_sample + since

    found = counts_at(stage, seed, sample)

    source, own = locate_all(stream_of(seed, stages_of(asked)), np.arange(sample))
    assert list(found) == [share.source for share in stage.shares]
    assert found == {number: int(np.count_nonzero(source == number)) for number in found}
    assert own.size == sum(found.values())


def test_a_far_sample_costs_what_the_first_one_does() -> None:
    """After a thousand stages of a hundred sources: nothing is counted up to it."""
    weights = [tuple(range(1, 101)), tuple(range(100, 0, -1))]
    asked = [AskedStage(10**11 * index, weights[index % 2]) for index in range(1000)]
    stream = stream_of(7, stages_of(asked))
    shapes = [Shape(np.array([10**9 + index])) for index in range(100)]
    samples = np.arange(10**14, 10**14 + 4096)

    last, end = stream.at(10**14)

    far = plan(last, shapes, samples)
    source, own = locate_all(stream, samples)
    assert (last.stage.index, end) == (999, None)
    assert np.array_equal(far.source, source)
    assert own.min() > 10**11
    assert len(set(far.source.tolist())) == 100
