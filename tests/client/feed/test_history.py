"""A history names every batch that was delivered, and no other."""

from __future__ import annotations

import json
import logging
import sys
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.states import state_of
from tokenfeed.client.feed import cursor as cursor_module
from tokenfeed.client.feed import history as history_module
from tokenfeed.client.feed.cursor import Cursor
from tokenfeed.client.feed.history import HISTORY_RUNS_MAX, History, Run
from tokenfeed.client.feed.state import read_state
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus
from tokenfeed.stream.stream import Stream

STREAM = Stream.of_dataset("train", orders.find("shuffled-1"), 2**64 - 1, 2048).known(
    {0: Corpus(bytes([171] * 32))}
)


class Named(NamedTuple):
    """A batch of all ranks."""

    samples: range
    batch_size: int
    world_size: int


def named(history: History) -> list[Named]:
    """The batches that a history names, one by one."""
    found = []
    for run in history.runs:
        stride = run.batch_size * run.world_size
        assert len(found) == run.first_batch - history.first_batch
        found += [
            Named(
                range(first, min(first + stride, run.end_sample)),
                *(run.batch_size, run.world_size),
            )
            for first in range(run.first_sample, run.end_sample, stride)
        ]
    return found


def can_merge(before: Run, after: Run) -> bool:
    whole = before.batch_size * before.world_size
    return bool(
        before.end_sample == after.first_sample
        and before[3:] == after[3:]
        and (before.end_sample - before.first_sample) % whole == 0
    )


class Feeds(RuleBasedStateMachine):
    """Feeds that resume from each other's states, and the list of the batches that they deliver."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor, self.sizes = Cursor(Position(0, 2, 0, 1)), (2, 1)
        self.delivered: list[Named] = []
        self.saved: list[tuple[str, list[Named]]] = []

    def commit(self, end_sample: int | None = None, next_sample: int | None = None) -> None:
        batch_size, world_size = self.sizes
        first_sample = self.cursor.sample
        whole = first_sample + batch_size * world_size
        end_sample = whole if end_sample is None else end_sample
        next_sample = end_sample if next_sample is None else next_sample
        self.cursor.current = self.cursor.after(
            first_sample, end_sample, next_sample, of_epoch=True
        )
        self.delivered.append(Named(range(first_sample, end_sample), *self.sizes))

    @rule(batches=st.integers(1, 5))
    def loop(self, batches: int) -> None:
        for _ in range(batches):
            self.commit()

    @rule(part=st.integers(1, 100))
    def end_an_epoch_with_padding(self, part: int) -> None:
        batch_size, world_size = self.sizes
        self.commit(self.cursor.sample + 1 + part % (batch_size * world_size))

    @rule(part=st.integers(1, 100))
    def end_an_epoch_with_rows_of_the_next_one(self, part: int) -> None:
        batch_size, world_size = self.sizes
        self.commit(None, self.cursor.sample + 1 + part % (batch_size * world_size))

    @rule(part=st.integers(0, 100))
    def loop_over_an_earlier_epoch(self, part: int) -> None:
        self.cursor.seek(part % (self.cursor.sample + 1))
        self.commit()

    @rule(samples=st.integers(0, 9))
    def skip(self, samples: int) -> None:
        self.cursor.seek(self.cursor.sample + samples)

    @rule()
    def save(self) -> None:
        sample, _, history = self.cursor.now
        state = state_of(STREAM, sample, history)
        self.saved.append((json.dumps(state), self.delivered.copy()))

    @rule(batch_size=st.integers(1, 3), world_size=st.integers(1, 3), data=st.data())
    def load(self, batch_size: int, world_size: int, data: st.DataObject) -> None:
        if not self.saved:
            self.save()
        text, delivered = data.draw(st.sampled_from(self.saved))
        state = read_state(json.loads(text))
        self.sizes = batch_size, world_size
        self.cursor = Cursor(Position(0, batch_size, 0, world_size))
        self.cursor.seek(state.sample, state.history)
        self.delivered = delivered.copy()

    @invariant()
    def names_what_was_delivered(self) -> None:
        _, _, history = self.cursor.now
        assert named(history) == self.delivered
        runs = history.runs
        assert not any(map(can_merge, runs[:-1], runs[1:]))


Feeds.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestWhateverFeedsDoTheirHistoryNamesEachBatchOnce = Feeds.TestCase


@given(
    runs=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=8),
    first_sample=st.integers(0, 60),
)
def test_a_history_since_a_sample_has_the_newest_batches_whose_stages_are_kept(
    runs: list[tuple[int, int]], first_sample: int
) -> None:
    """Of a batch before it, the stage is not known, and so of none that was delivered earlier."""
    history = History()
    for begin, samples in runs:
        history = history.extended(begin, begin + samples, 2, 1)

    assert history.end_sample == max((run.end_sample for run in history.runs), default=0)
    of_older_stages = [
        number for number, sample in enumerate(batches_of(history)) if sample < first_sample
    ]
    first_batch = of_older_stages[-1] + 1 if of_older_stages else 0
    kept = history.since(first_sample)
    assert batches_of(kept) == batches_of(history)[first_batch:]
    if kept.runs:
        assert (kept.first_batch, kept.runs[-1].end_batch) == (
            first_batch,
            history.runs[-1].end_batch,
        )


def batches_of(history: History) -> list[int]:
    """The first sample of each batch."""
    return [
        sample
        for run in history.runs
        for sample in range(run.first_sample, run.end_sample, run.batch_size * run.world_size)
    ]


def test_of_too_many_runs_the_oldest_are_dropped_and_the_rest_keep_their_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A state must not grow without end, nor say batch 0 of what was batch 500."""
    cursor = Cursor(Position(0, 4))
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        for run in range(HISTORY_RUNS_MAX + 500):
            for first_sample in (20 * run, 20 * run + 4):
                end_sample = first_sample + 4
                cursor.current = cursor.after(first_sample, end_sample, end_sample, of_epoch=True)
            cursor.seek(20 * run + 20)

    sample, _, history = cursor.now
    state = state_of(STREAM, sample, history)
    assert len(state["history"]) == HISTORY_RUNS_MAX
    assert state["history"][0] == [2 * 500, 20 * 500, 20 * 500 + 8, 4, 1]
    assert len(json.dumps(state)) < 100_000
    assert read_state(json.loads(json.dumps(state))).history == history
    assert caplog.text.count("its oldest runs are dropped") == 1


def test_a_history_longer_than_this_one_keeps_is_read_and_cut() -> None:
    """A later release may keep more."""
    runs = [[run, 20 * run, 20 * run + 4, 4, 1] for run in range(HISTORY_RUNS_MAX + 3)]

    history = read_state(state_of(STREAM) | {"history": runs}).history

    assert history.first_batch == 3
    assert len(history.runs) == HISTORY_RUNS_MAX


@pytest.mark.parametrize("skipped", [0, 3])
def test_an_interrupt_at_any_bytecode_comes_before_a_batch_or_after_it(skipped: int) -> None:
    """A Ctrl-C may come anywhere, and a state that is taken then has to be consistent."""
    files = (cursor_module.__file__, history_module.__file__)
    after = _delivered(Cursor(Position(0, 4, 0, 2)), skipped)
    seen = set()
    for at in count(1):
        cursor = Cursor(Position(0, 4, 0, 2))
        cursor.current = cursor.after(0, 8, 8 + skipped, of_epoch=True)
        before, passed = cursor.current, 0

        def trace(frame: FrameType, event: str, _: Any, at: int = at) -> Any:
            nonlocal passed
            frame.f_trace_opcodes = frame.f_code.co_filename in files
            if event == "opcode":
                passed += 1
                if passed == at:
                    raise KeyboardInterrupt
            return trace

        debugger = sys.gettrace()
        sys.settrace(trace)
        try:
            cursor.current = cursor.after(8 + skipped, 16 + skipped, 16 + skipped, of_epoch=True)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(debugger)
        assert cursor.current in (before, after)
        seen.add(cursor.current)
        if passed < at:
            break

    assert at > 20
    assert seen == {before, after}


def _delivered(cursor: Cursor, skipped: int) -> Any:
    cursor.current = cursor.after(0, 8, 8 + skipped, of_epoch=True)
    cursor.current = cursor.after(8 + skipped, 16 + skipped, 16 + skipped, of_epoch=True)
    return cursor.current
