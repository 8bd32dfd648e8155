"""What a source gave to a range of samples, as ranges: exactly what its samples are one by one."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stages import AskedStage, asked_stages, stages_of
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture_v1 import locate_all
from tokenfeed.sampling.own_samples import by_epoch, by_times, own_samples, own_samples_of
from tokenfeed.stream.stage import Share, Source, Stage
from tokenfeed.stream.stream import Stream

ORDER = orders.latest("shuffled")


def mixture(*asked: AskedStage, seed: int = 7) -> Stream:
    count = len(asked[-1].weights)
    sources = tuple(Source(f"d{number}", ORDER, 1, number) for number in range(count))
    return Stream(seed, sources, stages_of(asked, 4))


def shown(ranges: np.ndarray) -> list[int]:
    """The samples of ranges, which have to be ascending, apart, and not empty."""
    edges = ranges.ravel()
    assert ranges.shape == (len(ranges), 2)
    assert np.all(np.diff(edges) > 0)
    return [sample for first, end in ranges.tolist() for sample in range(first, end)]


@st.composite
def apart(draw: st.DrawFn, most: int = 300) -> np.ndarray:
    """Ascending ranges of samples."""
    edges = sorted(draw(st.lists(st.integers(0, most), max_size=12)))
    return np.array(edges[: len(edges) // 2 * 2], dtype=np.int64).reshape(-1, 2)


@given(asked_stages(), st.integers(0, 2**64 - 1), apart())
def test_own_samples_are_those_of_each_sample(
    asked: list[AskedStage], seed: int, ranges: np.ndarray
) -> None:
    """Blocks, stages, and what was skipped: a manifest has no sample too many and none too few."""
    samples = np.array([x for first, end in ranges for x in range(first, end)], dtype=np.int64)
    stream = mixture(*asked, seed=seed)
    source, own = locate_all(stream, samples)

    found = own_samples_of(stream, ranges)

    for number, each in enumerate(found):
        assert shown(each) == sorted(own[source == number].tolist())


def test_own_samples_of_one_dataset_are_its_samples() -> None:
    """One range, however long."""
    stream = Stream.of_dataset("d", ORDER, 1, 8)

    assert own_samples(stream, 5, 2**62)[0].tolist() == [[5, 2**62]]
    assert own_samples(stream, 5, 5)[0].shape == (0, 2)
    with pytest.raises(InvalidRequest, match="end_sample: 9223372036854775808 is not in"):
        own_samples(stream, 0, 2**63)


def test_own_samples_begin_with_the_bases_of_a_stage_and_are_listed_by_source() -> None:
    """Sources may have gaps in their numbers, pause, and count rows of another length."""
    sources = tuple(Source(f"d{number}", ORDER, 1, number) for number in (0, 3, 9))
    first = Stage(4, 100, 8, (Share(0, 0, 7), Share(3, 2, 10), Share(9, 1, 20)))
    second = Stage(5, 130, 4, (Share(9, 1, 800),))
    stream = Stream(7, sources, (first, second))

    found = [each.tolist() for each in own_samples(stream, 100, 140)]

    assert found == [[], [[10, 30]], [[20, 30], [800, 810]]]


def test_a_thousand_runs_of_10_9_samples_take_no_longer_than_their_gaps() -> None:
    """A history of a thousand skips, in a mixture with blocks of a million samples."""
    stream = mixture(AskedStage(0, (999_983, 17)), AskedStage(10**8 + 5, (600_000, 400_000)))
    firsts = np.arange(1000, dtype=np.int64) * 1_000_100
    ranges = np.stack([firsts, firsts + 1_000_000], axis=1)
    begun = time.process_time()

    found = own_samples_of(stream, ranges)

    assert time.process_time() - begun < 5  # one by one they take 100 s
    assert sum(int((each[:, 1] - each[:, 0]).sum()) for each in found) == 10**9


@given(st.lists(apart(60), max_size=5))
def test_samples_are_counted_as_often_as_they_occur(ranges: list[np.ndarray]) -> None:
    """A run that went back consumed some of them twice."""
    expected = Counter(sample for each in ranges for sample in _all(each))

    found = by_times(ranges)

    assert {sample: times for times, each in found for sample in shown(each)} == expected
    assert [times for times, _ in found] == sorted(set(expected.values()))


@given(st.lists(apart(90), max_size=4), st.integers(1, 40))
def test_samples_are_counted_by_epoch(ranges: list[np.ndarray], rows: int) -> None:
    """Coverage is asked for epoch by epoch."""
    expected = Counter(sample for each in ranges for sample in _all(each))

    found = by_epoch(ranges, rows)

    counted: Counter[int] = Counter()
    for each in found:
        samples = shown(each.ranges)
        assert {sample // rows for sample in samples} == {each.first_epoch}
        assert each.end_epoch == each.first_epoch + 1 or len(samples) == rows
        assert each.count == each.times * len(samples) * (each.end_epoch - each.first_epoch)
        for epoch in range(each.end_epoch - each.first_epoch):
            counted += Counter({sample + epoch * rows: each.times for sample in samples})
    assert counted == expected
    assert [(one.first_epoch, one.times) for one in found] == sorted(
        {(one.first_epoch, one.times) for one in found}
    )


def test_a_thousand_whole_epochs_are_one_entry() -> None:
    """They cover the same windows, so that they are asked for once."""
    (head, whole, tail) = by_epoch([np.array([[7, 1_000_000_003]], dtype=np.int64)], 1_000_000)

    assert (head.first_epoch, head.ranges.tolist()) == (0, [[7, 1_000_000]])
    assert (whole.first_epoch, whole.end_epoch, whole.times) == (1, 1000, 1)
    assert whole.ranges.tolist() == [[1_000_000, 2_000_000]]
    assert (tail.first_epoch, tail.count) == (1000, 3)


def _all(ranges: np.ndarray) -> list[int]:
    return [sample for first, end in ranges.tolist() for sample in range(first, end)]
