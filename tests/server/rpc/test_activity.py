"""What streams do is counted exactly, and shown as it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.support.memory_store import MemoryStore
from tokenfeed.sampling import orders
from tokenfeed.server.rows.reader import RowReader
from tokenfeed.server.rpc.activity.counts import RATE_SECONDS, Histogram, Labels
from tokenfeed.server.rpc.activity.streams import Caller
from tokenfeed.server.rpc.activity.tracker import (
    ENDED_SECONDS,
    FORGET_SECONDS,
    STREAMS_KEPT,
    Activity,
    CallActivity,
)
from tokenfeed.server.rpc.frame_producer import EncodedFrame, FrameProducer, Schedulers
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire import frame
from tokenfeed.wire.request import NO_HINTS, Hints, Request

ROW_BYTES = 18


class Clock:
    """The time, set by a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tokenfeed.server.rpc.activity.tracker.time", clock)
    return clock


def producer(
    first_sample: int = 0, rank: int = 0, batch_size: int = 4, num_batches: int = 10
) -> FrameProducer:
    store = MemoryStore("train", [np.arange(1000, dtype="<u2")])
    stream = Stream.of_dataset("", orders.find("sequential-1"), 0, 8)
    request = Request(stream, Position(first_sample, batch_size, rank, 8), num_batches=num_batches)
    shared = frame.Frames(9, request.position, bytes(32), {})
    reader = RowReader(request, store, lambda: store)
    return FrameProducer(["train"], reader, shared, Schedulers.of_dataset())


def made(end_row: int, row_count: int = 4) -> EncodedFrame:
    return EncodedFrame(bytes(100), end_row, row_count, np.zeros(row_count, np.int64), ROW_BYTES)


@contextmanager
def calling(
    activity: Activity,
    clock: Clock,
    name: str = "run-1",
    port: int = 1,
    hints: Hints = NO_HINTS,
    **asked: int,
) -> Iterator[CallActivity]:
    caller = Caller(f"ipv4:10.0.0.1:{port}", name)
    with activity.call(producer(**asked), caller, clock.now, hints) as call:
        yield call


def send(call: CallActivity, clock: Clock, end_row: int, make: float, wait: float) -> None:
    clock.now += make
    call.made()
    clock.now += wait
    call.sent(made(end_row), True)


def test_frames_and_rows_are_counted_once_they_were_taken(clock: Clock) -> None:
    """A frame that a client never took was not sent."""
    activity = Activity()
    with calling(activity, clock) as call:
        send(call, clock, 4, 0.002, 0.0)
        clock.now += 0.002
        call.made()

    totals = activity.totals()
    labels = Labels("train", "sequential-1")
    assert (totals.rows[labels].rows, totals.rows[labels].token_bytes) == (4, 4 * ROW_BYTES)
    counts = totals.frames[labels]
    assert (counts.frames, counts.frame_bytes, counts.opened, counts.open) == (1, 100, 1, 0)
    assert sum(counts.make_seconds.counts) == 2
    assert sum(counts.send_seconds.counts) == 1


def test_a_stream_s_time_is_divided_by_who_waited_for_whom(clock: Clock) -> None:
    """The first question about a slow run."""
    activity = Activity()
    with calling(activity, clock) as call:
        send(call, clock, 4, 3.0, 5.0)
        clock.now += 1.0
        call.made()
        clock.now += 1.0
        (stream,), _ = activity.streams(9)

    assert stream.waits_for_server == pytest.approx(0.4)
    assert stream.waits_for_client == pytest.approx(0.6)
    assert stream.idle_seconds == pytest.approx(2.0)
    assert (stream.tokens, stream.tokens_per_second) == (32, pytest.approx(3.2))


def test_a_frame_that_waits_is_seen_before_it_is_taken(clock: Clock) -> None:
    """A stalled client is what a page has to show, while it stalls."""
    activity = Activity()
    with calling(activity, clock) as call:
        call.made()
        for _ in range(30):
            clock.now += 1
            activity.tick()
        (stream,), _ = activity.streams(9)

    assert stream.waits_for_client == 1.0
    assert (stream.calls, stream.idle_seconds) == (1, 30.0)


def test_a_call_ahead_is_not_waiting_while_another_makes_a_frame(clock: Clock) -> None:
    """A client has its next call open before it has read the last one."""
    activity = Activity()
    with calling(activity, clock) as call, calling(activity, clock, first_sample=320) as ahead:
        ahead.made()
        send(call, clock, 4, 6.0, 2.0)
        (stream,), _ = activity.streams(9)

    assert stream.next_sample == 32, "not that of the call ahead"
    assert stream.waits_for_server == pytest.approx(0.75)
    assert stream.waits_for_client == pytest.approx(0.25)
    assert activity.totals().frames[Labels("train", "sequential-1")].opened == 1


def test_a_stream_whose_next_call_is_ahead_is_open_once(clock: Clock) -> None:
    """And closed with its last call."""
    activity = Activity()
    labels = Labels("train", "sequential-1")
    with calling(activity, clock), calling(activity, clock, first_sample=320):
        assert activity.totals().frames[labels].open == 1
    assert activity.totals().frames[labels].open == 0


def test_rates_are_those_of_the_last_seconds(clock: Clock) -> None:
    """What a run does now, not what it did on average since Monday."""
    activity = Activity()
    with calling(activity, clock) as call:
        for second in range(100):
            send(call, clock, 4 * second + 4, 0.5, 0.5)
            activity.tick()
        for _ in range(2 * RATE_SECONDS):
            clock.now += 1
            activity.tick()
        (stream,), _ = activity.streams(9)
        _, _, rows, token_bytes, each = activity.sent_of("train")

    assert stream.tokens_per_second == 0
    assert (rows, token_bytes) == (0, 0)
    assert each == [4 * ROW_BYTES] * 40 + [0] * 20
    assert activity.sent_rates()[1] == [100] * 40 + [0] * 20


def test_a_stream_keeps_its_place_across_calls_and_ranks_are_apart(clock: Clock) -> None:
    """A stream makes a call for every few MiB."""
    activity = Activity()
    for first_sample in (0, 320):
        with calling(activity, clock, first_sample=first_sample) as call:
            send(call, clock, 40, 0.1, 0.1)
    with calling(activity, clock, port=2, rank=3) as call:
        send(call, clock, 5, 0.1, 0.1)

    streams, omitted = activity.streams(9)
    assert omitted == 0
    assert [(each.rank, each.rows, each.next_sample) for each in streams] == [
        (3, 4, 45),
        (0, 8, 640),
    ]


def test_a_stream_without_a_call_is_logged_and_then_forgotten(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it begins and one when it ends: never one for a batch."""
    activity = Activity()
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        with calling(activity, clock) as call:
            send(call, clock, 4, 0.5, 1.5)
        clock.now += ENDED_SECONDS + 1
        activity.tick()
        assert len(activity.streams(9)[0]) == 1
        clock.now += FORGET_SECONDS
        activity.tick()

    assert activity.streams(9) == ([], 0)
    opened, ended = caplog.messages
    assert opened == (
        "stream opened peer=ipv4:10.0.0.1:1 client='run-1' dataset=train order=sequential-1 "
        "context_length=8 batch_size=4 rank=0 world_size=8 first_sample=0"
    )
    assert ended == (
        "stream ended peer=ipv4:10.0.0.1:1 client='run-1' rank=0 rows=4 seconds=2.0 "
        "tokens_per_second=16 next_sample=32 reason=idle"
    )


def test_a_stream_has_one_first_frame(clock: Clock) -> None:
    """After a failover two calls begin together, and both make a frame before one is taken."""
    activity = Activity()
    with calling(activity, clock) as call, calling(activity, clock, first_sample=320) as ahead:
        call.made()
        ahead.made()
        call.sent(made(4), True)

    counts = activity.totals().frames[Labels("train", "sequential-1")]
    assert sum(counts.first_seconds.counts) == 1


def test_a_frame_that_a_client_left_behind_is_no_sign_of_life(clock: Clock) -> None:
    """A client that hung and was then killed had not read anything for that time."""
    activity = Activity()
    with calling(activity, clock) as call:
        call.made()
        clock.now += 29
        call.sent(made(4), False)
    (stream,), _ = activity.streams(9)

    assert (stream.rows, stream.idle_seconds) == (4, 29.0)


def test_clients_that_hang_are_listed_before_those_that_ended(clock: Clock) -> None:
    """Of thousands of streams some are left out, and not those that an operator looks for."""
    activity = Activity()
    with calling(activity, clock, name="hangs") as call:
        call.made()
        clock.now += 100
        for number in range(5):
            with calling(activity, clock, name=f"ended {number}", port=2) as other:
                send(other, clock, 4, 0.1, 0.1)
        with calling(activity, clock, name="reads", port=3) as reads:
            send(reads, clock, 4, 0.1, 0.1)
            streams, omitted = activity.streams(3)

    assert [one.client_name for one in streams] == ["hangs", "reads", "ended 4"]
    assert omitted == 4


def test_those_that_may_come_back_are_listed_before_those_that_ended(clock: Clock) -> None:
    """A thousand evaluations that are over do not hide a trainer without a call."""
    activity = Activity()
    with calling(activity, clock, name="pauses") as call:
        send(call, clock, 4, 0.1, 0.1)
    for number in range(5):
        with calling(activity, clock, hints=Hints(is_last=True), name=f"over {number}") as other:
            send(other, clock, 4, 0.1, 0.1)

    streams, omitted = activity.streams(2)

    assert [one.client_name for one in streams] == ["pauses", "over 4"]
    assert omitted == 4


def test_what_is_sent_first_of_a_dataset_counts_for_its_rate(clock: Clock) -> None:
    """A dataset may be read long after the start; its first second may be its only one."""
    activity = Activity()
    for _ in range(30):
        clock.now += 1
        activity.tick()
    clock.now += 0.5
    with calling(activity, clock) as call:
        send(call, clock, 4, 0.0, 0.0)
    clock.now += 0.5
    before = activity.sent_of("train")
    activity.tick()
    after = activity.sent_of("train")

    assert before.rows_per_second == pytest.approx(0.4)
    assert after.second_bytes == [0] * 29 + [4 * ROW_BYTES]


def test_clients_that_change_their_names_do_not_fill_the_memory(clock: Clock) -> None:
    """A name is what a client says."""
    activity = Activity()
    with calling(activity, clock, name="first"):
        for number in range(STREAMS_KEPT + 100):
            with calling(activity, clock, name=f"client {number}"):
                clock.now += 0.001
        streams, omitted = activity.streams(10)

    assert len(streams) + omitted <= STREAMS_KEPT + 1
    assert len(activity.totals().frames) == 1


def test_counts_are_exact_with_many_threads() -> None:
    """They are compared with what clients counted."""
    activity = Activity()

    def run(rank: int) -> None:
        caller = Caller(f"ipv4:10.0.0.1:{rank}", "run")
        with activity.call(producer(rank=rank), caller, 0.0) as call:
            for row in range(500):
                call.made()
                call.sent(made(row + 1, 1), True)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    totals = activity.totals()
    labels = Labels("train", "sequential-1")
    assert totals.rows[labels].rows == 8 * 500
    assert sum(totals.frames[labels].send_seconds.counts) == 8 * 500
    assert totals.frames[labels].open == 0


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.0005, 0), (0.0006, 1), (30.0, 14), (31.0, 15)]
)
def test_a_bucket_includes_its_bound(seconds: float, bucket: int) -> None:
    """As Prometheus defines it: le is "at most"."""
    histogram = Histogram()
    histogram.add(seconds)

    assert [index for index, count in enumerate(histogram.counts) if count] == [bucket]


def test_a_pause_in_which_a_client_wanted_nothing_is_no_wait(clock: Clock) -> None:
    """A trainer whose prefetched rows last for 20 s asks after each 20 s, and does not hang."""
    activity = Activity()
    with calling(activity, clock) as call:
        send(call, clock, 4, 0.1, 0.1)
    clock.now += 20
    with calling(activity, clock):
        clock.now += 1
        (asks,), _ = activity.streams(9)
    # Calls that end without a row and are made again are a wait.
    for _ in range(6):
        clock.now += 1
        with calling(activity, clock):
            (waits,), _ = activity.streams(9)

    assert asks.idle_seconds == pytest.approx(1)
    assert waits.idle_seconds == pytest.approx(7)


def test_a_stream_that_comes_back_after_a_long_pause_has_rates_of_now(clock: Clock) -> None:
    """Not those of the five minutes before: it waits for the server all the time."""
    activity = Activity()
    with calling(activity, clock) as call:
        for _ in range(20):
            send(call, clock, 4, 0.5, 0.5)
            activity.tick()
    for _ in range(300):
        clock.now += 1
        activity.tick()
    with calling(activity, clock) as call:
        clock.now += 0.01
        (returned,), _ = activity.streams(9)
        for second in range(10):
            send(call, clock, 4 * second + 4, 1.0, 0.0)
            activity.tick()
        (stream,), _ = activity.streams(9)

    assert returned.waits_for_server < 0.01, "it fills its buffer"
    assert stream.tokens_per_second == pytest.approx(32, rel=0.01)
    assert stream.waits_for_server == pytest.approx(1.0, rel=0.01)


def test_a_client_that_retries_for_minutes_without_a_row_has_not_ended(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """While storage is away, the log would have two lines of each retry."""
    activity = Activity()
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        for _ in range(200):
            with calling(activity, clock):
                clock.now += 0.5
            clock.now += 1
            activity.tick()

    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("stream opened ")


def test_the_goodbye_of_a_client_is_no_new_stream(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It may come an hour after the last row, when a trainer ends its last evaluation."""
    activity = Activity()
    goodbye = Hints(is_last=True)
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        with calling(activity, clock) as call:
            send(call, clock, 4, 0.1, 0.1)
        clock.now += ENDED_SECONDS + 1
        activity.tick()
        with calling(activity, clock, hints=goodbye, num_batches=0):
            pass
        (stream,), _ = activity.streams(9)
        clock.now += FORGET_SECONDS + 1
        activity.tick()
        # Over another connection, or once it was forgotten.
        with calling(activity, clock, port=2, hints=goodbye, num_batches=0):
            pass
        (other,), _ = activity.streams(9)

    assert (stream.rows, stream.has_ended) == (4, True)
    assert (other.rows, other.has_ended) == (0, True), "the runs of a page show it as reconnected"
    assert [line.split(" peer")[0] for line in caplog.messages] == ["stream opened", "stream ended"]
    assert activity.totals().frames[Labels("train", "sequential-1")].opened == 1
