"""Steps, ranks and rows by a history: exactly those of the batches that were delivered."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stages import AskedStage, stages_of
from tokenfeed.client.feed.history import History, Run, history_of
from tokenfeed.client.feed.stats import source_stats
from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture_v1 import locate_all
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus, Redaction, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.tools.provenance.manifest import consumed
from tokenfeed.tools.provenance.runs import (
    assumed,
    future,
    places_of,
    ranges_of,
    rows_of_step,
    segments,
)
from tokenfeed.wire.request import Request

LIST, OTHER_LIST = bytes(31) + b"\1", bytes(31) + b"\2"
ASKED = AskedStage(0, (3, 2, 0)), AskedStage(11, (1, 0, 4)), AskedStage(40, (0, 5, 2))


def mixture(*asked: AskedStage, redactions: tuple[Redaction, ...] = ()) -> Stream:
    """A known stream of three sources."""
    sources = tuple(
        Source(f"d{number}", orders.latest(name), 3, number, corpus=Corpus(bytes([number]) * 32))
        for number, name in enumerate(("shuffled", "random", "sequential"))
    )
    return Stream(9, sources, stages_of(asked, 8), redactions).known({})


def alone(redactions: tuple[Redaction, ...] = ()) -> Stream:
    """A known stream of one dataset."""
    order = orders.latest("shuffled")
    stream = Stream.of_dataset("web", order, 5, 8, redactions=redactions)
    return stream.known({0: Corpus(b"\xab" * 32)})


MIXED = mixture(*ASKED)
CHANGED = Stream(
    5,
    (alone().source, Source("other", orders.latest("random"), 1, 1, corpus=Corpus(bytes(32)))),
    (
        *alone().stages,
        Stage(1, 23, 16, (Share(0, 1, 9),)),
        Stage(2, 40, 16, (Share(1, 1, 3),)),
    ),
).known({})
"""A stream of one dataset, then with longer rows, then of another dataset."""
STREAMS = [alone(), MIXED, CHANGED]


class Row(NamedTuple):
    """A row that was delivered."""

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
        )
        runs.append(run)
        end_batch = run.end_batch
    return history_of(runs)


def rows_of(history: History) -> list[Row]:
    """Every row of a history, one by one."""
    return [
        Row(sample, run.first_batch + batch, rank, row)
        for run in history.runs
        for batch in range(run.end_batch - run.first_batch)
        for rank in range(run.world_size)
        for row in range(run.batch_size)
        for sample in [run.first_sample + (batch * run.world_size + rank) * run.batch_size + row]
        if sample < run.end_sample
    ]


def samples_of(history: History, step: int, *which: int) -> list[int | None]:
    """The samples of the rows of a step; None for padding."""
    return [found.sample for found in rows_of_step(history, step, *which).rows]


@given(histories())
def test_the_rows_of_every_step_are_those_that_were_delivered(history: History) -> None:
    """What `explain` says of a step is what its ranks have read."""
    found = []
    for step in range(history.first_batch, history.runs[-1].end_batch):
        count, rows = rows_of_step(history, step)[1:]
        each = list(rows)
        assert len(each) == count
        found += [Row(sample, step, rank, row) for rank, row, sample in each if sample is not None]
        rank, row, _ = each[-1]
        assert list(rows_of_step(history, step, rank, row).rows) == each[-1:]

    assert found == rows_of(history)


@given(histories(), st.lists(st.integers(0, 110), max_size=30))
def test_the_places_of_samples_are_all_that_were_delivered(
    history: History, samples: list[int]
) -> None:
    """A rewound run has read a sample twice, and `find` names both."""
    expected = sorted(
        (index, row.step, row.rank, row.row)
        for index, sample in enumerate(samples)
        for row in rows_of(history)
        if row.sample == sample
    )

    places = places_of(history, np.array(samples, dtype=np.int64))

    assert [tuple(each) for each in places.T.tolist()] == expected


@given(histories())
def test_the_ranges_of_a_history_have_the_samples_of_its_runs(history: History) -> None:
    """These are what a manifest is made of."""
    ranges = ranges_of(history).tolist()

    found = [sample for first, end in ranges for sample in range(first, end)]

    assert sorted(found) == sorted(row.sample for row in rows_of(history))


@given(histories(), st.sampled_from(STREAMS))
def test_what_was_consumed_is_what_every_row_had(history: History, stream: Stream) -> None:
    """A manifest has each own sample as often as it was trained on, in rows of its length."""
    expected: Counter[tuple[int, int, int]] = Counter()
    for row in rows_of(history):
        (source,), (own,) = locate_all(stream, np.array([row.sample]))
        length = stream.stages[stream.place_of(row.sample)].context_length
        expected[int(source), length, int(own)] += 1

    found: Counter[tuple[int, int, int]] = Counter()
    for use, parts in consumed(stream, history).items():
        for first, end in np.concatenate(parts).tolist():
            found.update((use.source, use.context_length, own) for own in range(first, end))

    assert found == expected


@given(histories())
def test_what_was_consumed_of_a_mixture_is_what_stats_count(history: History) -> None:
    """An auditor compares both."""
    found: Counter[str] = Counter()
    for use, parts in consumed(MIXED, history).items():
        found[f"d{use.source}"] += int(np.diff(np.concatenate(parts)).sum())

    assert found == {
        name: stats.samples
        for name, stats in source_stats(MIXED, history, {}).items()
        if stats.samples
    }


def test_a_step_that_the_history_does_not_have_is_an_error_that_says_which_it_has() -> None:
    """A run has other steps than its trainer counts, for example after a rewind."""
    history = history_of([Run(7, 0, 40, 4, 2), Run(12, 40, 100, 4, 3)])

    with pytest.raises(InvalidRequest, match=r"^step: 17 is not in the history, .* steps 7 to 16$"):
        rows_of_step(history, 17)
    with pytest.raises(InvalidRequest, match=r"^step: 6 .* 7 to 16; its oldest runs were dropped$"):
        rows_of_step(history, 6)
    with pytest.raises(InvalidRequest, match=r"^step: -1 is not in the history"):
        rows_of_step(history, -1)
    with pytest.raises(
        InvalidRequest, match=r"^rank: 2 is not in \[0, 1\]: the world size of step 7 was 2$"
    ):
        rows_of_step(history, 7, rank=2)
    with pytest.raises(
        InvalidRequest, match=r"^row: 4 is not in \[0, 3\]: the batch size of step 7 was 4$"
    ):
        rows_of_step(history, 7, row=4)
    with pytest.raises(InvalidRequest, match=r"^step: 0 is unknown: the history has no step yet$"):
        rows_of_step(History(), 0)
    huge = history_of([Run(0, 0, 2**60, 2**20, 2**32)])
    assert rows_of_step(huge, 0).row_count == 2**52
    assert samples_of(huge, 0, 2**32 - 1, 2**20 - 1) == [2**52 - 1]


def test_what_is_to_come_goes_on_as_the_last_step() -> None:
    """`find` says when a document will be read, and a run may be given other ranks."""
    history = history_of([Run(0, 0, 40, 4, 2)])
    ahead = future(history, 48, alone())
    samples = np.array([47, 48, 48 + 8 * 10 + 5, 2**63 - 1])

    places = places_of(ahead, samples)

    steps, ranks, rows = [5, 15, 5 + (2**63 - 49) // 8], [0, 1, 1], [0, 1, 3]
    assert places.tolist() == [[1, 2, 3], steps, ranks, rows]
    assert samples_of(ahead, 15, 1, 1) == [48 + 8 * 10 + 5]
    wider = future(history, 48, alone(), batch_size=3, world_size=5)
    assert samples_of(wider, 6, 4, 2) == [48 + 15 + 14]
    with pytest.raises(InvalidRequest, match=r"^batch_size: is missing"):
        future(History(), 0, alone())
    with pytest.raises(SamplesExhausted):
        future(history, 2**63, alone())


def test_what_is_to_come_has_as_many_tokens_in_a_batch_at_every_context_length() -> None:
    """The step before a change may be filled up, and one of a length that does not fit is unknown:
    the feed would have to be told its batch size.
    """
    history = history_of([Run(0, 0, 40, 4, 2)])
    lengths = ((0, 8), (61, 16), (70, 64))
    stages = tuple(
        Stage(n, first, length, (Share(0, 1, 0),), bytes(32))
        for n, (first, length) in enumerate(lengths)
    )
    stream = Stream(0, (Source("", orders.find(""), 0),), stages)

    ahead = future(history, 48, stream)

    assert ahead.runs == (Run(5, 48, 61, 4, 2), Run(7, 61, 70, 2, 2))
    assert [one for one in samples_of(ahead, 6) if one is not None] == [56, 57, 58, 59, 60]
    assert future(history, 61, stream).runs[0] == Run(5, 61, 70, 2, 2)
    with pytest.raises(InvalidRequest, match=r"^batch_size: .* 32 tokens .* no whole rows of 64"):
        future(history, 70, stream)
    assert future(history, 70, stream, batch_size=1).runs == (Run(5, 70, 2**63, 1, 2),)


def test_the_last_batch_before_sample_2_63_ends_there() -> None:
    """Samples behind it do not exist, and no number wraps around."""
    history = history_of([Run(0, 2**63 - 3, 2**63, 4, 2)])

    assert samples_of(history, 0) == [2**63 - 3, 2**63 - 2, 2**63 - 1, *[None] * 5]


def test_without_a_state_it_is_said_what_was_assumed() -> None:
    """A step alone does not tell its samples."""
    history, words = assumed(32, 8)

    assert samples_of(history, 9000, 3, 1) == [9000 * 256 + 3 * 32 + 1]
    assert words == (
        "step 0 began at sample 0, and every step had 32 rows on each of 8 ranks: no skip, no "
        "other batch size, no other ranks"
    )
    with pytest.raises(InvalidRequest, match=r"^batch_size: 0 is not in"):
        assumed(0, 1)


def test_segments_are_the_requests_that_a_client_would_make() -> None:
    """So a server accepts them, and compares the same identity."""
    redactions = (Redaction(5, 1, LIST), Redaction(30, 2, OTHER_LIST), Redaction(31, 2, LIST))
    stream = mixture(*ASKED, redactions=redactions)
    expected, row = [], 2
    request = Request(stream, Position(0, 1), end_sample=90)
    while row < 90:
        part = request.part(row, 90)
        expected.append((part.stream, row, row + part.row_count, stream.identity(row)))
        row += part.row_count

    found = segments(stream, 2, 90)

    assert [(*one, one.stream.identity(one.first_sample)) for one in found] == expected
    assert len({identity for *_, identity in expected}) == len(expected) == 6


def test_segments_of_one_dataset_end_where_a_redaction_begins() -> None:
    """Its rows have another identity from there on."""
    stream = alone((Redaction(10, 0, LIST),))

    before, after = segments(stream, 4, 20)

    assert (*before[1:], before.stream.redactions) == (4, 10, ())
    assert (*after[1:], after.stream.redactions) == (10, 20, stream.redactions)
    assert after.stream.identity(10) == stream.identity(10) != stream.identity(9)
    assert segments(alone(), 4, 4) == []


def test_a_sample_whose_stage_was_dropped_is_an_error_that_says_so() -> None:
    """A state keeps the last 1,000 stages; the row would be another one."""
    stream = MIXED.with_stages(MIXED.stages[1:])
    begin = stream.stages[0].first_sample

    assert segments(stream, begin, begin + 1)[0].stream == MIXED.at(begin)[0]
    with pytest.raises(InvalidRequest, match=rf"^sample: {begin - 1} .* begins with {begin}$"):
        segments(stream, begin - 1, begin + 1)


def test_a_redaction_is_told_from_its_sample_on() -> None:
    """A manifest has to say which of a document's samples were redacted."""
    stream = mixture(AskedStage(0, (3, 2, 0)), redactions=(Redaction(23, 1, LIST),))
    history = history_of([Run(0, 0, 50, 5, 2)])

    found = {
        (use.source, use.redactions): sum(int(np.diff(each).sum()) for each in parts)
        for use, parts in consumed(stream, history).items()
    }

    before = int(np.sum(locate_all(stream, np.arange(23))[0] == 1))
    assert found == {(0, ()): 30, (1, ()): before, (1, (LIST,)): 20 - before}
