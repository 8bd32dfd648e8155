"""Which server a stream tries next, after what backoff, and when it gives up."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.client.conftest import StartScripted
from tokenfeed.client.source.failover import Failover
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.replicas import Replica, ReplicaSet
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import (
    BadFrame,
    BeingMade,
    Busy,
    ListMissing,
    NotFound,
    StreamMismatch,
    TokenfeedError,
    Unreachable,
)
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as they are before they are varied."""
    monkeypatch.setattr("tokenfeed.client.source.failover._JITTER", (1.0, 1.0))


class Journey:
    """A failover whose attempts fail as scripted, and whose pauses take no time."""

    def __init__(
        self,
        targets: list[str],
        *,
        first: int = 0,
        reconnect_seconds: float | None = None,
        pause_count_max: int | None = None,
    ) -> None:
        self.awaited_since: float | None = 0.0
        self.failover = Failover(
            ReplicaSet(targets),
            rank=first,
            timeouts=Timeouts(read_seconds=3.0, reconnect_seconds=reconnect_seconds),
            awaited_since=lambda: self.awaited_since,
        )
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self.pauses: list[float] = []
        self.pause_count_max = pause_count_max

    def go(self, outcome: Callable[[int, str], TokenfeedError | None]) -> None:
        """Run until an attempt succeeds: outcome(index of the attempt, address) is its error."""

        def attempt(replica: Replica) -> None:
            self.asked.append(replica.address)
            self.timeouts.append(self.failover.read_seconds)
            if (error := outcome(len(self.asked) - 1, replica.address)) is not None:
                raise error

        self.failover.run(attempt, pause=self.pauses.append, is_over=self.is_over)

    def is_over(self) -> bool:
        return len(self.pauses) == self.pause_count_max


def away(_: int, address: str) -> TokenfeedError:
    return Unreachable(address, "is down")


class Clock:
    """The clock of a failover."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def silent(self, journey: Journey) -> Callable[[int, str], TokenfeedError]:
        """What becomes of asking a server that says nothing."""

        def outcome(index: int, address: str) -> TokenfeedError:
            self.now += journey.failover.read_seconds
            return away(index, address)

        return outcome


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tokenfeed.client.source.failover.time", clock)
    return clock


def fails(times: int, error: Callable[[int, str], TokenfeedError] = away) -> Callable:
    return lambda index, address: error(index, address) if index < times else None


def test_the_next_server_is_asked_at_once_and_a_pause_comes_only_after_all_of_them() -> None:
    journey = Journey(["a:1", "b:1", "c:1"])

    journey.go(fails(7))

    assert journey.asked == ["a:1", "b:1", "c:1"] * 2 + ["a:1", "b:1"]
    assert journey.pauses == [0.1, 0.2]


def test_ranks_begin_with_different_servers() -> None:
    begun = []
    for rank in range(4):
        journey = Journey(["a:1", "b:1"], first=rank)
        journey.go(fails(0))
        begun += journey.asked

    assert begun == ["a:1", "b:1", "a:1", "b:1"]


def test_the_ranks_of_a_server_that_is_down_are_spread_over_all_others() -> None:
    """Of 5 servers with 4 ranks each, and not only to the next one."""
    targets = [f"{name}:1" for name in "abcde"]
    for down in ({"a:1"}, {"a:1", "b:1"}):
        found = Counter[str]()
        for rank in range(20):
            journey = Journey(targets, first=rank)
            journey.go(lambda _, address, down=down: away(0, address) if address in down else None)
            found[journey.asked[-1]] += 1
        assert set(found) == set(targets) - down
        assert max(found.values()) <= 20 / len(found) + 2


def test_a_rank_goes_back_to_its_own_server_at_a_later_break(clock: Clock) -> None:
    """Else the last server of a rolling upgrade would have no rank, and another one all. Each
    server is tried once before the pause.
    """
    journey = Journey(["a:1", "b:1", "c:1"], first=1)
    journey.go(fails(1))
    journey.failover.record_progress()
    clock.now += 40
    journey.go(fails(6))

    assert journey.asked == ["b:1", "c:1", "c:1", "b:1", "a:1", "b:1", "c:1"]
    assert len(journey.pauses) == 1


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [(3, ["a:1", "b:1", "c:1"]), (31, ["a:1", "b:1", "a:1", "c:1"])],
)
def test_servers_that_break_after_each_frame_do_not_keep_a_rank(
    clock: Clock, seconds: int, asked: list[str]
) -> None:
    """The third one is reached, though a frame begins a new round."""
    journey = Journey(["a:1", "b:1", "c:1"])

    def breaks(index: int, address: str) -> TokenfeedError | None:
        journey.failover.record_progress()
        clock.now += seconds
        return None if address == "c:1" else away(index, address)

    journey.go(breaks)

    assert journey.asked == asked


def test_no_server_is_tried_once_it_is_over() -> None:
    """For example if it is closed during a pause."""
    journey = Journey(["a:1", "b:1"], pause_count_max=1)

    journey.go(away)

    assert journey.asked == ["a:1", "b:1"]


def test_tries_are_at_most_two_seconds_apart() -> None:
    journey = Journey(["a:1"])

    journey.go(fails(10))

    assert journey.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_the_read_timeout_doubles_after_each_silent_round_up_to_a_minute(clock: Clock) -> None:
    """A 64 MiB batch on a slow link: otherwise two replicas alternate for ever."""
    journey = Journey(["a:1", "b:1"])

    journey.go(fails(12, clock.silent(journey)))

    assert journey.timeouts == [3, 3, 6, 6, 12, 12, 24, 24, 48, 48, 60, 60, 60]


def test_servers_that_are_down_do_not_raise_the_read_timeout() -> None:
    """They refuse at once; a silent server after that times out as early as before."""
    journey = Journey(["a:1", "b:1"])

    journey.go(fails(12))

    assert journey.timeouts == [3] * 13


def test_an_outage_may_last_for_days() -> None:
    """Three hours are 5,000 rounds."""
    journey = Journey(["a:1"])

    journey.go(fails(5000))

    assert len(journey.asked) == 5001


def test_a_frame_resets_the_round_and_the_backoff() -> None:
    journey = Journey(["a:1", "b:1"])

    def outcome(index: int, address: str) -> TokenfeedError | None:
        if index == 5:
            journey.failover.record_progress()
        return away(index, address) if index < 7 else None

    journey.go(outcome)

    assert journey.pauses == [0.1, 0.2, 0.1]


def test_on_a_slow_link_the_read_timeout_stays_above_the_time_of_a_frame(clock: Clock) -> None:
    """Otherwise the feed requests the same bytes again and again. It decays slowly."""
    journey = Journey(["a:1"])
    journey.go(fails(2, clock.silent(journey)))

    timeouts = []
    for waited_seconds in (10.0, 0.1, *[11.0] * 3, *[0.1] * 50):
        journey.failover.record_progress(waited_seconds)
        timeouts.append(journey.failover.read_seconds)

    assert timeouts[:5] == [30, 28.5, 33, 33, 33]
    assert timeouts[-1] == 3


def test_the_read_timeout_does_not_change_if_no_round_failed() -> None:
    """A frame that was nearly too late does not show that the link is slow."""
    journey = Journey(["a:1", "b:1"])

    journey.go(fails(1))
    journey.failover.record_progress(2.9)

    assert journey.failover.read_seconds == 3


def test_a_refusal_is_raised_when_every_server_has_refused_twice() -> None:
    """A flipped bit looks like a wrong request, but not twice."""
    journey = Journey(["a:1", "b:1"])

    with pytest.raises(NotFound, match="no such dataset at a:1"):
        journey.go(lambda _, address: NotFound("dataset", f"no such dataset at {address}"))

    assert journey.asked == ["a:1", "b:1", "a:1", "b:1"]
    assert journey.pauses == [0.0]


def test_a_list_that_no_server_has_is_asked_for_again_for_three_seconds(clock: Clock) -> None:
    """Each looks for new lists once a second; only then it is a refusal like any other."""

    def lacks(index: int, address: str) -> TokenfeedError:
        clock.now = sum(journey.pauses)
        return ListMissing(address, "lacks redaction list 0101")

    journey = Journey(["a:1", "b:1"])
    journey.go(fails(10, lacks))
    assert journey.pauses == [0.25] * 5
    journey = Journey(["a:1", "b:1"])
    with pytest.raises(ListMissing, match="lacks redaction list 0101"):
        journey.go(lacks)
    assert clock.now == 3.0
    assert journey.pauses[-1] == 0.0


def test_a_refusal_by_one_server_is_not_raised_while_another_may_come_back() -> None:
    journey = Journey(["a:1", "b:1"])

    def outcome(index: int, address: str) -> TokenfeedError | None:
        if address == "b:1":
            return StreamMismatch(address, "has another corpus")
        return away(index, address) if index < 8 else None

    journey.go(outcome)

    assert journey.asked[-1] == "a:1"


def test_a_bad_frame_is_requested_again() -> None:
    journey = Journey(["a:1"])

    journey.go(fails(1, lambda _, __: BadFrame("frame", "its checksum does not match")))

    assert journey.asked == ["a:1", "a:1"]


def test_each_outage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that follows soon; but a long one only every 30 s."""
    journey = Journey(["a:1"])

    journey.go(fails(3))
    journey.failover.record_progress()
    journey.go(fails(6))

    assert caplog.text.count("waiting for server rank=0 target=a:1") == 2
    assert len(re.findall(r"server is back rank=0 target=a:1 seconds=0\.\d", caplog.text)) == 2


def test_an_attempt_that_asks_all_servers_is_a_round() -> None:
    failover, pauses, attempts = Journey(["a:1", "b:1", "c:1"]).failover, [], []

    def attempt(replica: Replica) -> bool:
        attempts.append(replica)
        if len(attempts) < 3:
            raise Unreachable(replica.address, "is down")
        return True

    assert failover.run(attempt, pause=pauses.append, is_over=lambda: False, asks_all=True)
    assert pauses == [0.1, 0.2]


def test_where_all_servers_are_busy_the_pause_is_what_they_ask_for() -> None:
    journey = Journey(["a:1", "b:1"])

    journey.go(fails(2, lambda index, _: Busy("calls", "too many", 5.0 + index)))

    assert journey.pauses == [5.0]


def test_in_the_end_the_error_names_the_servers_and_what_each_said(clock: Clock) -> None:
    journey = Journey(["a:1", "b:1"], reconnect_seconds=5.0)

    def outcome(_: int, address: str) -> TokenfeedError:
        clock.now += 2.0
        return Unreachable(address, "is down")

    with pytest.raises(Unreachable, match=r"a:1, b:1: no batches .*a:1: is down; b:1: is down"):
        journey.go(outcome)


def test_the_reconnect_timeout_runs_only_while_the_trainer_waits(clock: Clock) -> None:
    """An outage that begins and ends during an evaluation does no harm."""
    journey = Journey(["a:1"], reconnect_seconds=10.0)
    journey.awaited_since = None

    def outcome(index: int, address: str) -> TokenfeedError:
        clock.now += 2.0
        if index == 10:
            journey.awaited_since = clock.now
        return Unreachable(address, "is down")

    with pytest.raises(Unreachable, match="no batches"):
        journey.go(outcome)

    assert len(journey.asked) == 11 + 5


def test_the_read_timeout_does_not_exceed_the_reconnect_timeout() -> None:
    journey = Journey(["a:1"], reconnect_seconds=2.0)

    journey.go(fails(0))

    assert journey.timeouts[0] <= 2.0


def test_pauses_vary_so_that_feeds_that_lost_a_server_together_come_back_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand of them would be the next outage."""
    monkeypatch.undo()
    firsts = []
    for _ in range(20):
        journey = Journey(["a:1"], pause_count_max=1)
        journey.go(away)
        firsts.append(journey.pauses[0])

    assert all(0.1 <= pause <= 0.15 for pause in firsts)
    assert len(set(firsts)) > 10


def test_the_wait_does_not_end_while_a_server_gets_on_with_what_it_makes(clock: Clock) -> None:
    """A corpus may take an hour to pack; one that stands still is given up like any other."""
    progress = [0.1, 0.2, 0.3, 0.4, 0.5, *[0.5] * 10]
    journey = Journey(["a:1"], reconnect_seconds=10.0)

    def outcome(index: int, address: str) -> TokenfeedError:
        clock.now += 8.0
        return BeingMade(address, "is not ready", {"rows": progress[index]})

    with pytest.raises(Unreachable, match="no batches for"):
        journey.go(outcome)
    assert len(journey.asked) == 7
    assert clock.now == 7 * 8.0


def test_one_of_several_servers_that_gets_on_is_enough(clock: Clock) -> None:
    """The other one is down for good."""
    journey = Journey(["a:1", "b:1"], reconnect_seconds=10.0)

    def outcome(index: int, address: str) -> TokenfeedError | None:
        clock.now += 4.0
        if index == 40:
            return None
        made = {"rows": index / 100}
        return away(index, address) if address == "a:1" else BeingMade(address, "", made)

    journey.go(outcome)
    assert clock.now == 41 * 4.0


def waited_rounds(clock: Clock, progress: list[dict[str, float]]) -> int:
    """How often a server is asked that answers like this, 8 s each, before it is given up."""
    journey = Journey(["a:1"], reconnect_seconds=10.0)

    def outcome(index: int, address: str) -> TokenfeedError:
        clock.now += 8.0
        return BeingMade(address, "is not ready", progress[min(index, len(progress) - 1)])

    with pytest.raises(Unreachable, match="no batches for"):
        journey.go(outcome)
    return len(journey.asked)


STILL = 2
"""Rounds of 8 s without progress that exceed a timeout of 10 s."""


def test_the_second_packed_source_of_a_server_gets_on_too(clock: Clock) -> None:
    """It is made once the first one is, and begins at 0."""
    first, second = ({"a": share / 10} for share in range(1, 10)), ({"b": 0.0}, {"b": 0.1})

    assert waited_rounds(clock, [*first, *second]) == 9 + 2 + STILL


def test_one_of_several_sources_that_gets_on_is_enough(clock: Clock) -> None:
    progress = [{"a": 0.5, "b": share / 10} for share in range(10)]

    assert waited_rounds(clock, progress) == 10 + STILL


def test_a_server_that_begins_again_is_waited_for(clock: Clock) -> None:
    """It was killed at 70 %, and packs from 0 on."""
    before, after = ([{"a": share / 10} for share in range(end)] for end in (8, 10))

    assert waited_rounds(clock, before + after) == 8 + 10 + STILL


def test_rows_that_wait_for_others_have_their_progress_first(clock: Clock) -> None:
    """Several times, if several were asked for before them."""
    progress = [{"a": share / 10} for _ in range(4) for share in range(10)]

    assert waited_rounds(clock, progress) == 40 + STILL


def test_a_server_that_is_killed_again_and_again_is_given_up(clock: Clock) -> None:
    """At about the same place, since its memory is used up there."""
    progress = [{"a": share} for _ in range(100) for share in (0.0, 0.3, 0.6)]

    assert waited_rounds(clock, progress) == 9 * 3 + STILL


def test_any_replica_that_gets_on_is_enough(start_scripted: StartScripted) -> None:
    """All of them are asked at once, and the first one stands still."""
    servers = [start_scripted(), start_scripted()]
    began = time.monotonic()

    def rows(request: pb.DescribeRequest) -> pb.OrderRows:
        return pb.OrderRows(order="packed-1", progress=0.5)

    def growing_rows(request: pb.DescribeRequest) -> pb.OrderRows:
        done = (time.monotonic() - began) / 3.0
        if done < 1:
            return pb.OrderRows(order="packed-1", progress=done)
        return pb.OrderRows(order="packed-1", rows=7, pieces_hash=bytes(32))

    servers[0].document_rows, servers[1].document_rows = rows, growing_rows
    stream = Stream.of_dataset("train", orders.find("packed-1"), 7, 4)
    timeouts = Timeouts(read_seconds=3.0, reconnect_seconds=1.5)
    with closing(
        Servers(
            [server.address for server in servers],
            Request(stream, Position(0, 3)),
            timeouts=timeouts,
        )
    ) as remote:
        assert remote.rows_of("packed-1") == 7
    assert time.monotonic() - began > 3.0
