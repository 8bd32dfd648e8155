"""Steps, ranks and rows by a history: exactly those of the batches that were delivered."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.feed.history import History, Run, history_of
from client.feed.mixture.counts import source_stats
from client.provenance.consumed import consumed
from client.provenance.runs import (
    assumed,
    future,
    places_of,
    rows_of_step,
    segments,
    spec_of,
    streams_of,
)
from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture import locate_all
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import Position
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import Mixture, Source, StreamSpec
from tokenfeed.stream.stages import AskedStage, scheduled
from tokenfeed.wire.request import StreamRequest

ALONE = StreamParts("shuffled-1", 5, 8, "ab" * 32)
LIST, OTHER_LIST = bytes(31) + b"\1", bytes(31) + b"\2"


def mixture_spec(*asked: AskedStage, redactions: tuple[Redaction, ...] = ()) -> StreamSpec:
    names = ("shuffled", "random", "sequential")
    sources = tuple(
        Source(f"d{number}", orders.latest(name), 3 * orders.latest(name).USES_SEED, number)
        for number, name in enumerate(names)
    )
    stages = scheduled(asked, len(sources))
    return StreamSpec(8, sources, Mixture(9, stages), redactions=redactions)


def parts_of(spec: StreamSpec) -> StreamParts:
    return spec.parts([Corpus(bytes([number]) * 32) for number in range(len(spec.sources))])


SPEC = mixture_spec(AskedStage(0, (3, 2, 0)), AskedStage(11, (1, 0, 4)), AskedStage(40, (0, 5, 2)))
MIXED = parts_of(SPEC)
OTHER = parts_of(mixture_spec(AskedStage(0, (3, 2, 0)), AskedStage(40, (1, 1, 1))))


class Row(NamedTuple):
    """A row that was delivered."""

    spec: StreamParts
    sample: int
    step: int
    rank: int
    row: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Runs with any jumps between them, some of which end with padding."""
    runs: list[Run] = []
    end_batch = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 6))):
        first_sample = draw(st.integers(0, 60))
        run = Run(
            end_batch,
            first_sample,
            first_sample + draw(st.integers(1, 40)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 3)),
            draw(st.sampled_from([ALONE, MIXED, OTHER])),
        )
        runs.append(run)
        end_batch = run.end_batch
    return history_of(runs)


def rows_of(history: History) -> list[Row]:
    """Every row of a history, one by one."""
    return [
        Row(run.spec, sample, run.first_batch + batch, rank, row)
        for run in history.runs
        for batch in range(run.end_batch - run.first_batch)
        for rank in range(run.world_size)
        for row in range(run.batch_size)
        for sample in [run.first_sample + (batch * run.world_size + rank) * run.batch_size + row]
        if sample < run.end_sample
    ]


@given(histories())
def test_the_rows_of_every_step_are_those_that_were_delivered(history: History) -> None:
    """What `explain` says of a step is what its ranks have read."""
    found = []
    for step in range(history.first_batch, history.runs[-1].end_batch):
        rows = rows_of_step(history, step)
        assert rows.sample.dtype == rows.rank.dtype == rows.row.dtype == np.int64
        assert rows.sample.size == rows.run.batch_size * rows.run.world_size
        real = ~rows.is_padding
        found += [
            Row(rows.run.spec, sample, step, rank, row)
            for sample, rank, row in zip(
                *(each[real].tolist() for each in (rows.sample, rows.rank, rows.row)), strict=True
            )
        ]
        last = rows_of_step(history, step, rows.run.world_size - 1, rows.run.batch_size - 1)
        assert (last.sample[0], last.rank[0]) == (rows.sample[-1], rows.rank[-1])

    assert found == rows_of(history)


@given(histories(), st.lists(st.integers(0, 110), max_size=30))
def test_the_places_of_samples_are_all_that_were_delivered(
    history: History, samples: list[int]
) -> None:
    """A rewound run has read a sample twice, and `find` names both."""
    for parts in (ALONE, MIXED, OTHER):
        expected = sorted(
            (index, row.step, row.rank, row.row)
            for index, sample in enumerate(samples)
            for row in rows_of(history)
            if (row.spec, row.sample) == (parts, sample)
        )

        places = places_of(history, parts, np.array(samples, dtype=np.int64))

        columns = (places.index, places.step, places.rank, places.row)
        assert list(zip(*(each.tolist() for each in columns), strict=True)) == expected


@given(histories())
def test_a_stream_has_the_samples_of_its_runs(history: History) -> None:
    """These are what a server is asked about."""
    found = {
        (parts, sample)
        for parts, ranges in streams_of(history).items()
        for first, end in ranges.tolist()
        for sample in range(first, end)
    }

    assert found == {(row.spec, row.sample) for row in rows_of(history)}


@given(histories())
def test_what_was_consumed_is_what_every_row_had_and_what_stats_count(history: History) -> None:
    """A manifest has each own sample as often as it was trained on."""
    expected: Counter[tuple[str, int]] = Counter()
    for row in rows_of(history):
        if row.spec is ALONE:
            expected["alone", row.sample] += 1
            continue
        mixture = spec_of(row.spec).mixture
        assert mixture is not None
        source, own = locate_all(mixture, np.array([row.sample]))
        expected[row.spec.sources[int(source[0])].dataset, int(own[0])] += 1

    found: Counter[tuple[str, int]] = Counter()
    for use, parts in consumed(history, "alone").items():
        for first, end in np.concatenate(parts).tolist():
            found.update((use.source.dataset, sample) for sample in range(first, end))

    assert found == expected
    totals = Counter(dataset for dataset, _ in found.elements())
    del totals["alone"]
    assert totals == {
        name: stats.samples for name, stats in source_stats(history, {}).items() if stats.samples
    }


def test_a_step_that_the_history_does_not_have_is_an_error_that_says_which_it_has() -> None:
    """A run has other steps than its trainer counts, for example after a rewind."""
    history = history_of([Run(7, 0, 40, 4, 2, ALONE), Run(12, 40, 100, 4, 3, ALONE)])

    with pytest.raises(InvalidRequest, match=r"^step: 17 is not in the history, .* steps 7 to 16$"):
        rows_of_step(history, 17)
    with pytest.raises(InvalidRequest, match=r"^step: 6 .* 7 to 16; its oldest runs were dropped$"):
        rows_of_step(history, 6)
    with pytest.raises(InvalidRequest, match=r"^step: -1 is not in the history"):
        rows_of_step(history, -1)
    with pytest.raises(InvalidRequest, match=r"^rank: 2 is not in \[0, 1\]$"):
        rows_of_step(history, 7, rank=2)
    with pytest.raises(InvalidRequest, match=r"^row: 4 is not in \[0, 3\]$"):
        rows_of_step(history, 7, row=4)
    with pytest.raises(InvalidRequest, match=r"^step: 0 is unknown: the history has no step yet$"):
        rows_of_step(History(), 0)
    huge = history_of([Run(0, 0, 2**60, 2**20, 2**32, ALONE)])
    with pytest.raises(
        InvalidRequest, match=r"^rank: is missing; step 0 has 4503599627370496 rows"
    ):
        rows_of_step(huge, 0)
    assert rows_of_step(huge, 0, 2**32 - 1).sample[-1] == 2**52 - 1


def test_what_is_to_come_goes_on_as_the_last_step() -> None:
    """`find` says when a document will be read, and a run may be given other ranks."""
    history = history_of([Run(0, 0, 40, 4, 2, ALONE)])
    ahead = future(history, ALONE, 48)
    samples = np.array([47, 48, 48 + 8 * 10 + 5, 2**63 - 1])

    places = places_of(ahead, ALONE, samples)

    assert places.index.tolist() == [1, 2, 3]
    assert places.step.tolist() == [5, 15, 5 + (2**63 - 49) // 8]
    assert (places.rank.tolist(), places.row.tolist()) == ([0, 1, 1], [0, 1, 3])
    assert rows_of_step(ahead, 15, 1, 1).sample.tolist() == [48 + 8 * 10 + 5]
    wider = future(history, ALONE, 48, batch_size=3, world_size=5)
    assert rows_of_step(wider, 6, 4, 2).sample.tolist() == [48 + 15 + 14]
    with pytest.raises(InvalidRequest, match=r"^batch_size: is missing"):
        future(History(), ALONE, 0)
    with pytest.raises(SamplesExhausted):
        future(history, ALONE, 2**63)


def test_the_last_batch_before_sample_2_63_ends_there() -> None:
    """Samples behind it do not exist, and no number wraps around."""
    rows = rows_of_step(assumed(ALONE, 4, 2, 2**63 - 3).history, 0)

    assert rows.is_padding.tolist() == [False] * 3 + [True] * 5
    assert rows.sample[:3].tolist() == [2**63 - 3, 2**63 - 2, 2**63 - 1]


def test_without_a_state_it_is_said_what_was_assumed() -> None:
    """A step alone does not tell its samples."""
    history, words = assumed(ALONE, 32, 8)

    assert rows_of_step(history, 9000, 3, 1).sample.tolist() == [9000 * 256 + 3 * 32 + 1]
    assert words == (
        "step 0 began at sample 0, and every step had 32 rows on each of 8 ranks: no skip, no "
        "other batch size, no other ranks"
    )
    with pytest.raises(InvalidRequest, match=r"^batch_size: 0 is not in"):
        assumed(ALONE, 0, 1)


def test_segments_are_the_requests_that_a_client_would_make() -> None:
    """So a server accepts them, and compares the same identity."""
    redactions = (Redaction(5, 1, LIST), Redaction(30, 2, OTHER_LIST), Redaction(31, 2, LIST))
    spec = mixture_spec(
        *(AskedStage(0, (3, 2, 0)), AskedStage(11, (1, 0, 4)), AskedStage(40, (0, 5, 2))),
        redactions=redactions,
    )
    corpora = [Corpus(bytes([number]) * 32) for number in range(3)]
    chain = spec.chain(corpora)
    expected, row = [], 2
    request = StreamRequest(spec, Position(0, 1), end_sample=90)
    while row < 90:
        part = request.part(row, 90, lambda place: spec.of_stage(place, chain[place]))
        end = row + part.row_count
        assert part.spec.mixture is not None
        identity = chain[part.spec.mixture.stages[0].index + 1]
        expected.append((row, end, part.spec, part.spec.redacted(identity)))
        row = end

    found = segments(parts_of(spec), 2, 90)

    assert [
        (one.first_sample, one.end_sample, one.spec, one.expected.identity) for one in found
    ] == expected
    assert [one.expected.identity_version for one in found] == [
        3 if one.spec.redactions else 2 for one in found
    ]
    assert spec_of(parts_of(spec)) == spec


def test_segments_of_one_dataset_end_where_a_redaction_begins() -> None:
    """Its name is not in a state, and is given."""
    spec = StreamSpec.of_dataset(
        "web", orders.latest("shuffled"), 5, 8, redactions=(Redaction(10, 0, LIST),)
    )
    corpus = Corpus(b"\xab" * 32)

    before, after = segments(spec.parts([corpus]), 4, 20, "web")

    assert (before.first_sample, before.end_sample, before.spec.redactions) == (4, 10, ())
    assert (after.first_sample, after.end_sample, after.spec) == (10, 20, spec)
    assert after.expected.identity == spec.identity([corpus])
    assert segments(ALONE, 4, 4) == []


def test_a_redaction_is_told_from_its_sample_on() -> None:
    """A manifest has to say which of a document's samples were redacted."""
    spec = mixture_spec(AskedStage(0, (3, 2, 0)), redactions=(Redaction(23, 1, LIST),))
    history = history_of([Run(0, 0, 50, 5, 2, parts_of(spec))])

    found = {
        (use.source.dataset, use.redactions): sum(int(np.diff(each).sum()) for each in parts)
        for use, parts in consumed(history).items()
    }

    mixture = spec.mixture
    assert mixture is not None
    before = int(np.sum(locate_all(mixture, np.arange(23))[0] == 1))
    assert found == {("d0", ()): 30, ("d1", ()): before, ("d1", (LIST.hex(),)): 20 - before}


def test_an_order_of_a_later_release_is_an_error_that_says_so() -> None:
    """Its samples cannot be computed."""
    later = StreamParts("shuffled-9", 5, 8, "ab" * 32)

    with pytest.raises(InvalidRequest, match="'shuffled-9' is unknown to this release; upgrade"):
        segments(later, 0, 1)
