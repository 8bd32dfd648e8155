"""Stages as they are asked for, any stream, and what the second implementation hashes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support import reference
from tokenfeed.sampling import orders
from tokenfeed.stream.schedule import first_stage, next_stage
from tokenfeed.stream.stage import Corpus, Redaction, Share, Source, Stage
from tokenfeed.stream.stream import Stream

SEEDS = st.integers(0, 2**64 - 1)
WORDS = st.sampled_from([0, 1, 7, 2**32, 2**63, 2**64 - 1]) | SEEDS
HASHES = st.sampled_from([bytes(32), bytes(range(32))]) | st.binary(min_size=32, max_size=32)
SAMPLE_END = 2**63


class AskedStage(NamedTuple):
    """Weights of all sources from a sample on; the first stage is asked for at 0."""

    first_sample: int
    weights: tuple[int, ...]


def stages_of(asked: Sequence[AskedStage], context_length: int = 3) -> tuple[Stage, ...]:
    """The stages as they really begin."""
    (_, weights), *later = asked
    found = [first_stage(context_length, dict(enumerate(weights)))]
    for first_sample, own in later:
        found.append(next_stage(found[-1], first_sample, dict(enumerate(own))))
    return tuple(found)


@st.composite
def asked_stages(draw: st.DrawFn, sources: int | None = None) -> list[AskedStage]:
    """Stages of a few sources, whose weights may be 0, each after a block or more."""
    count = sources or draw(st.integers(1, 5))
    weights = st.lists(st.integers(0, 12), min_size=count, max_size=count).filter(any)
    found: list[AskedStage] = []
    for _ in range(draw(st.integers(1, 4))):
        begin = 0
        if found:
            last = stages_of(found)[-1]
            begin = last.first_sample + draw(st.integers(1, 5 * last.block_size))
        found.append(AskedStage(begin, tuple(draw(weights))))
    return found


@st.composite
def streams(draw: st.DrawFn, *, of_request: bool = False) -> Stream:
    """Any known stream: gaps in the numbers, paused sources, bases and context lengths as given.

    of_request: as `Stream.at` returns it, with one stage and what is in force at its end.
    """
    numbers = sorted(draw(st.sets(st.sampled_from([0, 1, 2, 7, 10, 2**32 - 1]), min_size=1)))
    lengths = st.sampled_from([1, 2, 2048, 2**24 - 2])
    first = draw(st.sampled_from([0, 1, 2**62]) | st.integers(0, 2**62))
    stages: list[Stage] = []
    for index in range(draw(st.integers(1, 4))):
        weights = st.sampled_from([0, 1, 1, 2, 70, 2**17])
        drawn = draw(st.lists(weights, min_size=len(numbers), max_size=len(numbers)).filter(any))
        shares = tuple(
            Share(number, weight, draw(st.integers(0, 2**62)))
            for number, weight in zip(numbers, drawn, strict=True)
        )
        if index == 0 and draw(st.booleans()):
            first, shares = 0, (Share(numbers[0], 1, 0),)
        stages.append(Stage(index, first, draw(lengths), shares))
        first += draw(st.integers(1, 2**60))
    sources = tuple(draw(_sources(number, stages)) for number in numbers)
    redactions = draw(
        st.sets(
            st.builds(Redaction, st.integers(0, first), st.sampled_from(numbers), HASHES),
            max_size=4,
        )
    )
    stream = Stream(draw(WORDS), sources, tuple(stages), tuple(sorted(redactions)))
    known = stream.known({})
    if not of_request:
        return known
    place = draw(st.integers(0, len(stages) - 1))
    end = known.end_of(place) or SAMPLE_END
    return known.at(draw(st.sampled_from([stages[place].first_sample, end - 1])))[0]


@st.composite
def _sources(draw: st.DrawFn, number: int, stages: Sequence[Stage]) -> Source:
    fitting = [
        name
        for name, order in orders.ORDERS.items()
        if not any(order.BLOCK_TOKENS % stage.context_length for stage in stages)
    ]
    order = orders.find(draw(st.sampled_from(fitting)))
    pieces: tuple[tuple[int, bytes], ...] = ()
    if order.LONG_DOCUMENTS:
        lengths = sorted({stage.context_length for stage in stages})
        pieces = tuple((length, draw(HASHES)) for length in lengths)
    long_documents = draw(st.sampled_from(["", *order.LONG_DOCUMENTS]))
    corpus = Corpus(draw(HASHES), pieces)
    blocks = draw(st.sampled_from([0, 16, 2**20])) if order.BLOCK_TOKENS else 0
    name = draw(st.text(max_size=6))
    return Source(name, order, draw(WORDS), number, long_documents, corpus, blocks)


def of_reference(stream: Stream, stage: Stage) -> list[reference.Source]:
    """What the second implementation hashes of the sources of a stage."""
    sources = {source.number: source for source in stream.sources}
    found = []
    for number, weight, base in stage.shares:
        source = sources[number]
        corpus = source.corpus
        assert corpus is not None
        pieces = dict(corpus.pieces).get(stage.context_length) if corpus.pieces else None
        values = (corpus.fingerprint, source.order.NAME, source.seed, base, weight, pieces)
        found.append(reference.Source(number, *values, source.group_blocks or None))
    return found
