"""The samples of a mixture: every source's own come once each, whatever the weights become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture import locate_all
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import Mixture, Source, StreamSpec
from tokenfeed.stream.stages import AskedStage, Stage, scheduled

SEEDS = st.integers(0, 2**64 - 1)
T = 3


@st.composite
def asked_stages(draw: st.DrawFn, sources: int | None = None) -> list[AskedStage]:
    """Stages of a few sources, whose weights may be 0, each after a block or more."""
    count = sources or draw(st.integers(1, 5))
    weights = st.lists(st.integers(0, 12), min_size=count, max_size=count).filter(any)
    found: list[AskedStage] = []
    for _ in range(draw(st.integers(1, 4))):
        begin = 0
        if found:
            last = scheduled(found, count)[-1]
            begin = last.first_sample + draw(st.integers(1, 5 * last.block_size))
        found.append(AskedStage(begin, tuple(draw(weights))))
    return found


def samples_of(stages: Sequence[Stage], blocks: int) -> np.ndarray:
    """All samples up to this many blocks of the last stage."""
    return np.arange(stages[-1].first_sample + blocks * stages[-1].block_size)


@given(asked_stages(), SEEDS, st.integers(1, 4))
def test_each_source_s_own_samples_come_once_each_without_a_gap(
    asked: list[AskedStage], seed: int, blocks: int
) -> None:
    """Across blocks and stages: so it visits all of its windows."""
    stages = scheduled(asked, len(asked[0].weights))

    source, own = locate_all(Mixture(seed, stages), samples_of(stages, blocks))

    for index, base in enumerate(stages[-1].bases):
        count = base + blocks * stages[-1].weights[index]
        assert sorted(own[source == index].tolist()) == list(range(count))


@given(asked_stages(), SEEDS, st.integers(0, 3))
def test_every_whole_block_has_exactly_the_asked_shares(
    asked: list[AskedStage], seed: int, block: int
) -> None:
    """Drawing would miss them by the square root of the samples."""
    stages = scheduled(asked, len(asked[0].weights))
    for stage in stages:
        first = stage.first_sample + block * stage.block_size
        samples = np.arange(first, first + stage.block_size)

        source, _ = locate_all(Mixture(seed, (stage,)), samples)

        assert np.bincount(source, minlength=len(stage.weights)).tolist() == list(stage.weights)


@given(asked_stages(), SEEDS, st.integers(1, 3))
def test_a_stage_changes_nothing_before_it(asked: list[AskedStage], seed: int, blocks: int) -> None:
    """Neither a sample nor an identity: what was trained on stays what it was."""
    count = len(asked[0].weights)
    before, after = scheduled(asked[:-1] or asked, count), scheduled(asked, count)
    samples = samples_of(before, blocks)
    if len(after) > len(before):
        samples = samples[: after[-1].first_sample]

    for one, other in zip(
        locate_all(Mixture(seed, before), samples),
        locate_all(Mixture(seed, after), samples),
        strict=True,
    ):
        assert np.array_equal(one, other)
    corpora = [Corpus(bytes([index]) * 32) for index in range(count)]
    chain = spec_of(seed, before).chain(corpora)
    assert spec_of(seed, after).chain(corpora)[: len(chain)] == chain


@given(asked_stages(), SEEDS, st.integers(1, 7), st.integers(1, 7))
def test_the_ranks_together_read_what_one_would(
    asked: list[AskedStage], seed: int, world_size: int, batch_size: int
) -> None:
    """Whatever their number, also if a stage begins in the middle of a batch."""
    stages = scheduled(asked, len(asked[0].weights))
    rows = 3 * batch_size
    found = {}
    for rank in range(world_size):
        samples = Position(0, batch_size, rank, world_size).samples(0, rows)
        located = locate_all(Mixture(seed, stages), samples)
        places = zip(*(each.tolist() for each in located), strict=True)
        found |= dict(zip(samples.tolist(), places, strict=True))

    alone = locate_all(Mixture(seed, stages), np.arange(rows * world_size))

    assert [found[sample] for sample in sorted(found)] == list(
        zip(*(each.tolist() for each in alone), strict=True)
    )


def spec_of(
    seed: int, stages: tuple[Stage, ...], named: Sequence[str] = ("shuffled-1",), seeds: int = 7
) -> StreamSpec:
    """Sources with orders and seeds in turn."""
    sources = tuple(
        Source(f"s{number}", orders.find(named[number % len(named)]), seeds + number, number)
        for number in range(len(stages[0].weights))
    )
    return StreamSpec(T, sources, Mixture(seed, stages))


@settings(max_examples=60)
@given(st.data(), SEEDS, st.sampled_from([1, 3, 4, 5, 9]))
def test_a_source_reads_in_a_mixture_what_it_would_read_alone(
    data: st.DataObject, seed: int, sources: int
) -> None:
    """By its own order and seed, of its own files, of few windows or many."""
    stages = scheduled(data.draw(asked_stages(sources)), sources)
    spec = spec_of(seed, stages, tuple(orders.OF_WINDOWS))
    files = st.lists(st.integers(0, 900), min_size=1, max_size=4).filter(lambda n: max(n) > T)
    shapes = [Shape(np.array(data.draw(files))) for _ in range(sources)]
    samples = samples_of(stages, 2)
    source, own = locate_all(Mixture(seed, stages), samples)

    spans = plan(spec, shapes, samples)

    assert np.array_equal(spans.source, source)
    for index in set(source.tolist()):
        alone = StreamSpec.of_dataset("", spec.sources[index].order, 7 + index, T)
        expected = plan(alone, [shapes[index]], own[source == index])
        assert np.array_equal(spans.shard[source == index], expected.shard)
        assert np.array_equal(spans.token_offset[source == index], expected.token_offset)


def test_a_far_sample_costs_what_the_first_one_does() -> None:
    """After a thousand stages of a hundred sources: nothing is counted up to it."""
    weights = [tuple(range(1, 101)), tuple(range(100, 0, -1))]
    asked = [AskedStage(10**11 * index, weights[index % 2]) for index in range(1000)]
    spec = spec_of(7, scheduled(asked, 100))
    shapes = [Shape(np.array([10**9 + index])) for index in range(100)]

    last = spec.of_stage(999)

    far = plan(last, shapes, np.arange(10**14, 10**14 + 4096))
    assert np.array_equal(
        far.token_offset, plan(spec, shapes, np.arange(10**14, 10**14 + 4096)).token_offset
    )
    assert len(set(far.source.tolist())) == 100
