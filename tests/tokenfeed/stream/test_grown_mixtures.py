"""Where stages of another context length begin in a mixture, against sources that are read target
by target, and against the second implementation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import reference
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.sampling.orders.blocks_v1 import BlocksOfFiles
from tokenfeed.stream.order import Order
from tokenfeed.stream.schedule import first_stage, left_out, placed, planned_stage, resized_stage
from tokenfeed.stream.stage import LENGTH, Share, Source, Stage

SIZE = 64
LENGTHS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


class SmallBlocks(BlocksOfFiles):
    """`blocks-1` with blocks of 64 tokens, so that whole epochs are seen."""

    BLOCK_TOKENS = SIZE


class Corpus(NamedTuple):
    """The files of a source, in tokens, and its groups, in blocks."""

    files: list[int]
    group: int


Asked = list[tuple[int, int | list[int]]]
"""At which sample which context length, or which weights of all sources, are asked for."""


class Mixture(NamedTuple):
    """What is read.  asked: as `grown_stages` takes it."""

    corpora: list[Corpus]
    asked: Asked


CORPORA = st.builds(
    Corpus,
    st.lists(st.integers(0, 8 * SIZE), min_size=1, max_size=5).filter(
        lambda files: max(files) > SIZE
    ),
    st.sampled_from([1, 2, 3, 4]),
)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Any mixture whose context length and weights change."""
    corpora = draw(st.lists(CORPORA, min_size=2, max_size=4))
    weights = st.lists(st.integers(0, 4), min_size=len(corpora), max_size=len(corpora)).filter(any)
    asked: Asked = [(0, draw(LENGTHS)), (0, draw(weights))]
    for _ in range(draw(st.integers(1, 5))):
        change: int | list[int] = draw(st.one_of(LENGTHS, LENGTHS, weights))
        asked.append((draw(st.integers(0, 150)), change))
    return Mixture(corpora, asked)


def source_of(number: int, corpus: Corpus, order: Order | None = None) -> Source:
    order = order or SmallBlocks(np.array(corpus.files, np.int64), 1, corpus.group)
    source = Source(str(number), order, 7, number)
    # The least group of a stream would be nearly the whole corpus here.
    object.__setattr__(source, "group_blocks", corpus.group)
    return source


def count(corpus: Corpus, length: int) -> int:
    return sum(max(0, tokens - 1) // length for tokens in corpus.files)


class Run:
    """The stages of a mixture, as they are asked for one after the other."""

    def __init__(self, mixture: Mixture) -> None:
        self.corpora = mixture.corpora
        self.sources = [source_of(n, corpus) for n, corpus in enumerate(self.corpora)]
        (_, length), (_, weights), *later = mixture.asked
        assert isinstance(length, int)
        self.asked: Asked = mixture.asked[:2]
        self.stages = [first_stage(length, self._weights(weights))]
        for ahead, change in later:
            last = self.stages[-1]
            at = last.first_sample + 1 + ahead
            if isinstance(change, int) and change == last.context_length:
                continue
            stage = self.placed(last, at, change)
            if isinstance(stage, InvalidRequest):
                continue
            self.stages.append(stage)
            self.asked.append((at, change))

    def rows(self, source: Source, length: int) -> int:
        return count(self.corpora[source.number], length)

    def placed(self, last: Stage, at: int, change: int | list[int]) -> Stage | InvalidRequest:
        """The stage that follows, or why a source has too many ends of files left for it."""
        if isinstance(change, int):
            planned = planned_stage(change, at, last.weights, LENGTH)
        else:
            planned = planned_stage(last.context_length, at, self._weights(change))
        try:
            return placed(self.sources, self.rows, last, planned)
        except InvalidRequest as error:
            if "more than a group" in error.problem:
                return error
            raise

    @staticmethod
    def _weights(weights: object) -> dict[int, int]:
        assert isinstance(weights, list)
        return dict(enumerate(weights))


@settings(max_examples=150, deadline=None)
@given(mixtures())
def test_stages_of_any_mixture_are_those_of_the_second_implementation(mixture: Mixture) -> None:
    """The rule is on the page: a reader of it finds the same stages, and the same rows left out."""
    run = Run(mixture)

    sources = [("blocks-1", corpus.files, corpus.group) for corpus in run.corpora]
    expected = reference.grown_stages(sources, run.asked, SIZE)
    assert [stage.first_sample for stage in run.stages] == [
        each.stage.first_sample for each in expected
    ]
    assert [stage.context_length for stage in run.stages] == [
        each.context_length for each in expected
    ]
    for stage, each in zip(run.stages, expected, strict=True):
        assert stage.shares == tuple(
            Share(number, weight, base)
            for number, (weight, base) in enumerate(
                zip(each.stage.weights, each.stage.bases, strict=True)
            )
        )
    for (last, stage), each in zip(pairwise(run.stages), expected[1:], strict=True):
        found = left_out(last, stage, run.sources, run.rows)
        assert found == {n: rows for n, rows in enumerate(each.left_out) if rows}


@settings(max_examples=100, deadline=None)
@given(mixtures())
def test_each_source_has_each_target_of_whole_blocks_once_but_for_what_is_left_out(
    mixture: Mixture,
) -> None:
    """Whatever lengths and weights follow each other, and where: no token is learned twice in an
    epoch, and none is lost but those that are named, at most a group of each source.
    """
    run = Run(mixture)
    for number, corpus in enumerate(run.corpora):
        seen, skipped = defaultdict[int, Counter[tuple[int, int]]](Counter), Counter[int]()
        lost = defaultdict[int, set[tuple[int, int]]](set)
        position = 0
        for last, stage in pairwise([*run.stages, None]):
            assert last is not None
            share = last.shares[number]
            blocks = 40 if stage is None else last.blocks_before(stage.first_sample)
            end = share.base + blocks * share.weight
            for epoch, target in targets(corpus, last.context_length, share.base, end):
                seen[epoch][target] += 1
            if stage is None:
                position = end // count(corpus, last.context_length)
                break
            rows = left_out(last, stage, run.sources, run.rows).get(number, 0)
            assert rows * last.context_length <= corpus.group * SIZE
            for epoch, target in targets(corpus, last.context_length, end, end + rows):
                lost[epoch].add(target)
                skipped[epoch] += 1
        blocks_of = {
            (file, token)
            for file, tokens in enumerate(corpus.files)
            for token in range(max(0, tokens - 1) // SIZE * SIZE)
        }
        for epoch in range(position):
            assert set(seen[epoch].values()) <= {1}
            assert not lost[epoch] & {*seen[epoch]}
            assert blocks_of <= lost[epoch] | {*seen[epoch]}
            assert skipped[epoch] == len(lost[epoch])


def targets(
    corpus: Corpus, length: int, first: int, end: int
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Epoch, and file and token before it, of each target of own samples of a source."""
    order = SmallBlocks(np.array(corpus.files, np.int64), length, corpus.group)
    samples = np.arange(first, end)
    if not samples.size:
        return
    for sample, file, token in zip(
        *(each.tolist() for each in (samples, *order.windows(samples, 7))), strict=True
    ):
        for n in range(length):
            yield sample // count(corpus, length), (file, token + n)


@settings(max_examples=60, deadline=None)
@given(mixtures(), LENGTHS, st.integers(0, 300))
def test_a_refusal_names_a_sample_at_which_the_source_leaves_out_less(
    mixture: Mixture, length: int, ahead: int
) -> None:
    """A source of short files would lose most of an epoch; it changes near the end of that."""
    run = Run(mixture)
    last = run.stages[-1]
    assume(length != last.context_length)
    at = last.first_sample + ahead
    refusal = run.placed(last, at, length)
    if isinstance(refusal, Stage) or "it pauses" in refusal.problem:
        return
    assert refusal.subject == "at_sample"
    named = int(refusal.problem.partition("pass ")[2].partition(",")[0])
    assert named > at
    name = refusal.problem.partition(" of '")[2].partition("'")[0]
    # With larger blocks than groups, a source may be in its next epoch by then.
    assume(last.shares[int(name)].weight <= group_rows(run, int(name), last.context_length))
    again = run.placed(last, named, length)
    assert isinstance(again, Stage) or f"of {name!r}" not in again.problem


def group_rows(run: Run, number: int, length: int) -> int:
    return run.corpora[number].group * (SIZE // length)


@pytest.mark.parametrize("order", ["shuffled-1", "sequential-1"])
def test_a_source_of_another_order_refuses_by_its_name_within_its_epoch(order: str) -> None:
    """It would repeat windows: the cure is another order, chosen before the run."""
    corpora = [Corpus([40 * SIZE + 1], 4), Corpus([1001], 1)]
    sources = [source_of(0, corpora[0]), Source("code", orders.find(order), 7, 1)]

    def rows(source: Source, length: int) -> int:
        return count(corpora[source.number], length)

    last = Stage(0, 0, 8, (Share(0, 3, 0), Share(1, 1, 0)))
    with pytest.raises(InvalidRequest) as refusal:
        resized_stage(last, 41, 16, sources, rows)
    at_end = resized_stage(last, 4 * 125, 16, sources, rows)

    assert f"41 is within an epoch of 'code' of {order}" in refusal.value.problem
    assert "give it the order 'blocks' or 'random'" in refusal.value.problem
    # Where its epoch ends at an end of a block, it goes on with the next one.
    assert at_end.shares[1] == Share(1, 1, 62)


def test_random_rows_of_a_mixture_go_on_at_once() -> None:
    """Nothing is visited once, so nothing is left out."""
    sources = [Source(str(n), orders.find("random-1"), 7, n) for n in range(2)]
    last = Stage(0, 0, 8, (Share(0, 3, 0), Share(1, 1, 0)))

    stage = resized_stage(last, 5, 16, sources, lambda *_: 1000)

    assert stage == Stage(1, 8, 16, (Share(0, 3, 6), Share(1, 1, 2)))
    assert left_out(last, stage, sources, lambda *_: 1000) == {}


def test_the_same_length_leaves_out_nothing() -> None:
    """A change that comes to be none stays in the list, and rows go on as without it."""
    corpora = [Corpus([40 * SIZE + 1], 4), Corpus([50 * SIZE], 4)]
    sources: Sequence[Source] = [source_of(n, corpus) for n, corpus in enumerate(corpora)]
    last = Stage(0, 0, 8, (Share(0, 3, 0), Share(1, 1, 0)))

    stage = resized_stage(last, 5, 8, sources, lambda source, n: count(corpora[source.number], n))

    assert stage == Stage(1, 8, 8, (Share(0, 3, 6), Share(1, 1, 2)))
