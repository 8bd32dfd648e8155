"""Where a stage of another context length begins, against a corpus read target by target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.sampling.orders.blocks_v1 import BlocksOfFiles
from tokenfeed.stream.schedule import Rows, first_stage, resized_stage
from tokenfeed.stream.stage import CHANGED, Share, Source, Stage

SIZE = 64
LENGTHS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
FILES = st.lists(
    st.one_of(
        st.sampled_from([0, 1, 2, SIZE - 1, SIZE, SIZE + 1, SIZE + 2, 2 * SIZE, 3 * SIZE + 1]),
        st.integers(0, 8 * SIZE),
    ),
    min_size=1,
    max_size=8,
).filter(lambda files: max(files) > SIZE)
"""Files below a block, of exactly a block with its last target and without it, and others."""


class SmallBlocks(BlocksOfFiles):
    """`blocks-1` with blocks of 64 tokens, so that whole epochs are seen."""

    BLOCK_TOKENS = SIZE


def rows_of(files: Sequence[int]) -> Rows:
    return lambda _, length: count_of(files, length)


def count_of(files: Sequence[int], length: int) -> int:
    return sum(max(0, count - 1) // length for count in files)


def source_of(files: Sequence[int], group: int) -> Source:
    source = Source("", SmallBlocks(np.array(files, np.int64), 1, group), 7)
    # The least group of a stream would be nearly the whole corpus here.
    object.__setattr__(source, "group_blocks", group)
    return source


def after(
    files: Sequence[int], group: int, first: int, asked: Sequence[tuple[int, int]]
) -> list[Stage]:
    """The stages of a run that begins with a length; asked: how far behind the begin of the last
    stage the next one is asked for, and its length.
    """
    found = [first_stage(first, {0: 1})]
    for ahead, length in asked:
        source, at = source_of(files, group), found[-1].first_sample + ahead
        found.append(resized_stage(found[-1], at, length, [source], rows_of(files), CHANGED))
    return found


def read(
    files: Sequence[int], group: int, stages: Sequence[Stage], epochs: int
) -> dict[int, list[tuple[int, int, int]]]:
    """What a reader of these stages gets: epoch -> file, first token and length of each window, to
    the end of a number of epochs.
    """
    found: dict[int, list[tuple[int, int, int]]] = {epoch: [] for epoch in range(epochs)}
    begins = [stage.first_sample for stage in stages]
    for stage, end in zip(stages, [*begins[1:], None], strict=True):
        length = stage.context_length
        count = count_of(files, length)
        ((_, _, base),) = stage.shares
        stop = epochs * count if end is None else base + end - stage.first_sample
        samples = np.arange(base, max(base, stop))
        order = SmallBlocks(np.array(files, np.int64), length, group)
        file, token = order.windows(samples, 7)
        for sample, *window in zip(
            *(each.tolist() for each in (samples, file, token)), strict=True
        ):
            found.setdefault(sample // count, []).append((*window, length))
    return found


@settings(max_examples=60, deadline=None)
@given(
    files=FILES,
    group=st.sampled_from([1, 2, 3, 4, 16]),
    first=LENGTHS,
    asked=st.lists(st.tuples(st.integers(0, 400), LENGTHS), max_size=5),
)
def test_no_target_of_a_whole_block_is_lost_or_repeated_wherever_a_context_length_changes(
    files: list[int], group: int, first: int, asked: list[tuple[int, int]]
) -> None:
    """The reason for the order: a run may grow its context anywhere, any number of times."""
    stages = after(files, group, first, asked)
    ((_, _, base),) = stages[-1].shares
    epochs = base // count_of(files, stages[-1].context_length) + 1

    windows = read(files, group, stages, epochs)

    blocks = {
        (file, token)
        for file, count in enumerate(files)
        for token in range((max(0, count - 1) // SIZE) * SIZE)
    }
    for epoch in range(epochs):
        targets = Counter(
            (file, token + n) for file, token, length in windows[epoch] for n in range(length)
        )
        assert set(targets.values()) <= {1}
        assert blocks <= set(targets)
        # An epoch has all windows of the rests, too, at the one length that it had there.
        rests = [each for each in windows[epoch] if each[:2] not in blocks]
        lengths = {length for _, _, length in rests}
        assert len(lengths) <= 1
        for length in lengths:
            assert len(rests) == count_of(files, length) - len(blocks) // length


@settings(max_examples=60, deadline=None)
@given(
    files=FILES,
    group=st.sampled_from([1, 2, 3, 4, 16]),
    lengths=st.tuples(LENGTHS, LENGTHS),
    asked=st.integers(0, 2000),
)
def test_a_stage_begins_at_the_first_end_of_a_group_or_of_the_epoch(
    files: list[int], group: int, lengths: tuple[int, int], asked: int
) -> None:
    """A change that came later than it could would train on the wrong length for a gigabyte."""
    before, now = lengths
    stage = after(files, group, before, [(asked, now)])[-1]

    count, blocks = count_of(files, before), count_of(files, SIZE)
    epoch, seen = divmod(asked, count)
    parts = -(-blocks // group)
    least, longer = divmod(blocks, parts)
    ends = [n * least + min(n, longer) for n in range(parts + 1)]
    per_block = SIZE // before
    # (where it may begin, where it goes on)
    choices = [(end * per_block, end * (SIZE // now)) for end in ends]
    choices.append((count, count_of(files, now)))
    end, goes_on = next(each for each in choices if each[0] >= seen)
    assert stage.first_sample == epoch * count + end
    assert stage.shares == (Share(0, 1, epoch * count_of(files, now) + goes_on),)


def test_random_rows_change_at_once() -> None:
    """Nothing is visited once, so nothing can be left out or repeated."""
    source, rows = Source("", orders.find("random-1"), 7), rows_of([1000])

    stage = resized_stage(Stage(3, 40, 8, (Share(0, 1, 90),)), 55, 16, [source], rows, CHANGED)

    assert stage == Stage(4, 55, 16, (Share(0, 1, 105),))
    assert (stage.asked, stage.origin) == (55, CHANGED)


@pytest.mark.parametrize("order", ["shuffled-1", "sequential-1"])
def test_other_orders_change_between_two_epochs_only(order: str) -> None:
    """Their windows of another length are other ones, so an epoch cannot go on with them; and who
    asks is told where it can change.
    """
    source, rows = Source("", orders.find(order), 7), rows_of([161])
    last = Stage(1, 5, 8, (Share(0, 1, 20),))  # the second epoch

    stage = resized_stage(last, 25, 4, [source], rows)
    with pytest.raises(InvalidRequest) as refusal:
        resized_stage(last, 24, 4, [source], rows)

    assert listed(stage) == (25, 80)
    assert refusal.value.subject == "at_sample"
    assert "pass 25, where epoch 2 begins, or use order='blocks'" in refusal.value.problem
    assert order in refusal.value.problem


def listed(stage: Stage) -> tuple[int, int]:
    ((_, _, base),) = stage.shares
    return stage.first_sample, base


@pytest.mark.parametrize("order", ["packed-1", "padded-1"])
def test_an_order_over_documents_is_refused(order: str) -> None:
    """How documents are cut into rows is known at the length of a feed only."""
    with pytest.raises(InvalidRequest, match=f"rows of {order} are other pieces") as refusal:
        resized_stage(
            first_stage(8, {0: 1}), 0, 16, [Source("", orders.find(order), 7)], rows_of([9])
        )

    assert refusal.value.subject == "context_length"


def test_a_sample_that_would_reach_2_to_the_63_is_refused() -> None:
    """A shorter length has more samples in as many epochs."""
    source, rows = Source("", orders.find("shuffled-1"), 7), rows_of([2**40 + 1])
    last = first_stage(2**20, {0: 1})

    with pytest.raises(SamplesExhausted):
        resized_stage(last, 2**62, 1, [source], rows)


def test_stages_of_a_run_follow_each_other() -> None:
    """512 -> 1,024 -> 4,096 tokens, by hand: blocks of 2^19 tokens in groups of 16."""
    files = [40 * 2**19 + 1]
    source = Source("", orders.find("blocks-1"), 7, group_blocks=16)
    stages = [first_stage(512, {0: 1})]
    for asked, length in ((1, 1024), (20_000, 4096)):
        stages.append(resized_stage(stages[-1], asked, length, [source], rows_of(files)))

    # Groups of 14, 13 and 13 blocks, with 1,024 windows of 512 tokens each.
    assert [listed(stage) for stage in stages] == [
        (0, 0),
        (14 * 1024, 14 * 512),
        (14 * 1024 + 13 * 512, 27 * 128),
    ]
    assert all(one.index + 1 == following.index for one, following in pairwise(stages))
