"""What is wrong with a run, judged by numbers alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.statuses import HOSTILE_NAMES, dataset, status, stream
from tests.support.waiting import least_seconds
from tokenfeed.commands.status.attention import POINTS_SHOWN, health, judge
from tokenfeed.commands.status.states import HELD_TOKENS, Level, State
from tokenfeed.v1 import status_pb2 as pb

STALLED: dict[str, Any] = {
    "idle_seconds": 12.0,
    "waits_for_client": 1.0,
    "waits_for_server": 0.0,
    "tokens_per_second": 0.0,
}


def best_seconds(found: pb.GetStatusResponse) -> float:
    """How long a judgement takes."""

    def seconds() -> float:
        begun = time.monotonic()
        judge(found)
        return time.monotonic() - begun

    return least_seconds(seconds, 0.5)


def points(found: pb.GetStatusResponse) -> list[str]:
    return [point.text for point in judge(found).points]


def states(found: pb.GetStatusResponse) -> list[State]:
    """Of its streams, in their order."""
    by_id = {seen.status.address: seen.state for seen in judge(found).streams}
    return [by_id[each.address] for each in found.streams]


def ranks(count: int, world_size: int | None = None, **fields: Any) -> list[pb.StreamStatus]:
    return [stream("run", rank, world_size or count, **fields) for rank in range(count)]


def test_a_healthy_server_needs_no_attention() -> None:
    """A list that is never empty is not read."""
    found = status(datasets=[dataset()], streams=[*ranks(8), stream("eval", calls=0)])

    assert points(found) == []
    assert health(found) == (Level.NOTICE, "serving")
    assert {seen.state for seen in judge(found).streams} == {State.READING}


def test_a_client_that_does_not_read_is_named_first() -> None:
    """A frame that is ready for seconds is a trainer that hangs, or a network that does."""
    run = ranks(4)
    run[2].MergeFrom(pb.StreamStatus(**STALLED))
    found = status(datasets=[dataset()], streams=run)

    assert states(found)[2] is State.STALLED
    assert judge(found).streams[0].status.rank == 2
    assert points(found) == [
        "run, rank 2 of 4 (10.0.0.2:41234) does not read: a frame has been ready for 12 s. "
        "The trainer hangs, or its network."
    ]


def test_many_ranks_with_one_problem_are_one_sentence() -> None:
    """1,000 sentences hide the one that differs."""
    found = status(streams=ranks(64, **STALLED))

    assert points(found) == [
        "run, ranks 0 to 63 of 64, do not read: a frame has been ready for 12 s. "
        "The trainer hangs, or its network."
    ]


def test_a_frame_that_a_client_takes_at_last_is_no_stall() -> None:
    """On slow lines a frame takes a second or so."""
    slow = {"waits_for_client": 1.0, "waits_for_server": 0.0, "idle_seconds": 3.0}

    assert states(status(streams=[stream(**slow)])) == [State.READING]


def test_a_client_that_gets_no_frame_is_a_problem_of_the_server() -> None:
    """Then the server, or its storage, is what hangs."""
    found = status(
        datasets=[dataset(cold=True)],
        streams=[stream(idle_seconds=9.96, waits_for_server=1.0, tokens_per_second=0.0)],
    )

    assert states(found) == [State.UNSERVED]
    assert points(found) == [
        "run (10.0.0.0:41234) has waited 10 s for a frame. Reads of web wait for storage."
    ]


def test_a_client_that_mostly_waits_for_the_server_is_a_warning() -> None:
    """GPUs that wait cost more than servers."""
    young = stream("young", age_seconds=5.0, waits_for_server=1.0)
    found = status(streams=[stream(waits_for_server=0.96), young])

    assert [seen.state for seen in judge(found).streams] == [State.STARVED, State.READING]
    assert points(found) == [
        "run (10.0.0.0:41234) waits for the server 96 % of the time. The server makes frames no "
        "faster: it is busy, or its storage is slow."
    ]


def test_a_client_whose_calls_fail_waits_too() -> None:
    """While a storage cannot be read, a call ends without a row, and its client comes again."""
    tries = stream(calls=0, tokens_per_second=0.0, age_seconds=5.0, waits_for_server=0.97)

    assert states(status(streams=[tries])) == [State.STARVED]


def test_a_rank_far_behind_its_peers_is_named() -> None:
    """Ranks that take the same steps cannot be further apart than what they hold."""
    run = ranks(8)
    run[5].next_sample -= 8 * HELD_TOKENS // 2048 * 3 // 2
    run[5].calls, run[5].tokens_per_second, run[5].idle_seconds = 0, 0.0, 90.0
    run[6].next_sample -= 8 * HELD_TOKENS // 2048
    found = status(streams=run)

    assert states(found)[5:7] == [State.BEHIND, State.READING]
    assert points(found) == [
        "run, rank 5 of 8 (10.0.0.5:41234) has rows up to sample 901,696, 384 batches behind most "
        "of this run, and got some 1 min 30 s ago. The trainer is slow, hangs, or began elsewhere."
    ]


def test_runs_of_one_name_and_another_dataset_are_not_compared() -> None:
    """Training and validation have different positions."""
    train, val = ranks(4), ranks(4, datasets=["val"], next_sample=0)

    assert points(status(streams=[*train, *val])) == []


def test_two_runs_of_one_name_are_not_compared() -> None:
    """Who copies a script copies its client_name."""
    first, second = ranks(4), ranks(4, next_sample=10)
    for each in second:
        each.address += "0"

    assert points(status(streams=[*second, *first])) == []


def test_machines_of_one_run_are_one_run() -> None:
    """By default each machine has a name of its own."""
    run = [stream(f"node-{rank // 8} rank {rank}", rank, 16) for rank in range(16)]
    run[12].next_sample = 0
    other = [
        stream(f"other-{rank // 8} rank {rank}", rank, 16, next_sample=9) for rank in range(16)
    ]
    found = status(streams=[*other, *run])

    assert points(found) == [
        "node-0 and node-1, rank 12 of 16 (10.0.0.12:41234) has rows up to sample 0, 1,953 "
        "batches behind most of this run, and got some 0.2 s ago. The trainer is slow, hangs, or "
        "began elsewhere."
    ]


def test_a_missing_rank_is_named() -> None:
    """7 of 8 ranks wait for the eighth, and nothing else says why."""
    run = ranks(8)
    del run[3]

    assert points(status(streams=run)) == [
        "run: rank 3 of 8 is not here, unlike the others. It uses another server, or does not run."
    ]
    assert points(status(streams=run, streams_omitted=1)) == []


@pytest.mark.parametrize(
    ("world_size", "away"),
    [
        (3, "rank 2 of 3 is"),
        ((1 << 16) + 4, "ranks 2 to 65,539 of 65,540 are"),
        (1 << 40, "ranks 2 to 1,099,511,627,775 of 1,099,511,627,776 are"),
    ],
)
def test_missing_ranks_of_the_largest_runs_are_named(world_size: int, away: str) -> None:
    """The number of ranks is what a client says."""
    (text,) = points(status(streams=ranks(2, world_size)))

    assert text.startswith(f"run: {away} not here, unlike the others. ")


@pytest.mark.parametrize("servers", [2, 4])
def test_ranks_that_other_servers_have_are_not_missing(servers: int) -> None:
    """Clients spread over servers by their rank."""
    assert points(status(streams=ranks(16)[1::servers])) == []


def test_a_run_that_begins_or_ended_lacks_no_rank() -> None:
    """Ranks do not connect in the same second."""
    assert points(status(streams=ranks(7, 8, age_seconds=5.0))) == []
    ended = ranks(7, 8, idle_seconds=80.0, calls=0, tokens_per_second=0.0)
    assert points(status(streams=ended)) == []


def test_a_client_that_reconnected_is_not_counted_twice() -> None:
    """Its old stream stays in the list for minutes."""
    run = ranks(4)
    old = stream("run", 2, 4, calls=0, idle_seconds=100.0, next_sample=5, tokens_per_second=0.0)
    old.address = "ipv4:10.0.0.2:1"
    run[2].age_seconds = 98.0
    found = status(streams=[*run, old])

    assert states(found)[4] is State.REPLACED
    assert points(found) == []


def test_a_client_whose_rows_are_used_up_and_that_asks_for_nothing_is_a_warning() -> None:
    """It hangs, or it has ended; nobody else would tell."""
    quiet: dict[str, Any] = {"calls": 0, "tokens_per_second": 0.0, "idle_seconds": 300.0}
    ended = stream("ended", tokens=HELD_TOKENS * 31, age_seconds=600.0, **quiet)
    slow = stream("slow", tokens=HELD_TOKENS * 2, age_seconds=600.0, **quiet)
    found = status(streams=[ended, slow])

    assert [seen.state for seen in judge(found).streams] == [State.SILENT, State.SATISFIED]
    assert points(found) == [
        "ended (10.0.0.0:41234) has asked for nothing for 5 min, longer than the rows last that it "
        "was sent. The trainer was killed, or hangs."
    ]


def test_a_client_that_has_said_goodbye_needs_nobody() -> None:
    """It is not silent, its rank is not behind, and a new run of its name has not replaced it."""
    silent = {"calls": 0, "tokens_per_second": 0.0, "idle_seconds": 500.0}
    ended = stream("run", 2, 4, next_sample=5, has_ended=True, address="ipv4:10.0.0.9:1", **silent)
    found = status(streams=[*ranks(4), ended])

    judgement = judge(found)

    assert states(found)[4] is State.ENDED
    assert not judgement.points


def test_a_lost_dataset_is_the_first_point() -> None:
    """Its streams fail until the server is restarted, and do not look as if they had enough."""
    found = status(
        datasets=[dataset("code"), dataset(lost="web-3.bin was truncated")],
        streams=[stream(calls=0, tokens_per_second=0.0), stream("other", 1, 2, datasets=["code"])],
    )

    assert states(found) == [State.DATASET_LOST, State.READING]
    assert points(found)[0] == (
        "Dataset web is lost: web-3.bin was truncated. It is not served any more; the log "
        "of this server says why."
    )
    assert health(found) == (Level.PROBLEM, "serves 1 of 2 datasets")
    assert health(status(datasets=[dataset(lost="gone")])) == (Level.PROBLEM, "serves nothing")


def test_what_is_being_made_is_a_warning() -> None:
    """Streams that need it wait, and look as if the server hangs."""
    making = [{"what": "rows of packed-1, T = 2048", "share": 0.421}]

    assert points(status(datasets=[dataset(making=making)])) == [
        "Dataset web is making rows of packed-1, T = 2048: 42 % are done. Streams that need them "
        "wait."
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"draining": True}, "The server is shutting down. Its clients go on elsewhere."),
        (
            {"anonymous_bytes": 3800 << 20},
            "The server's own memory is near its limit: 3.71 GiB of 4.00 GiB, not counting files. "
            "Beyond it, the kernel ends the server.",
        ),
        (
            {"streams_open": 461},
            "461 streams are open, of about 512. Beyond that, clients have to wait "
            "(--max-streams).",
        ),
    ],
)
def test_a_server_near_its_limits_says_so(fields: dict[str, Any], text: str) -> None:
    """Before clients are refused, and before the kernel kills it."""
    assert points(status(**fields)) == [text]


@pytest.mark.parametrize(
    ("count", "level"),
    [(460, None), (461, Level.WARNING), (512, Level.WARNING), (513, Level.PROBLEM)],
)
def test_as_many_streams_as_the_limit_names_are_no_problem_yet(
    count: int, level: Level | None
) -> None:
    """Calls are limited, to twice that number, and a stream may have one."""
    found = judge(status(streams_open=count)).points

    assert [point.level for point in found] == ([] if level is None else [level])


def test_points_are_bounded_and_the_worst_come_first() -> None:
    """A thousand broken clients fit on a page, and hide no lost dataset."""
    streams = [stream(f"client {number}", waits_for_server=1.0) for number in range(300)]
    judged = judge(status(streams=streams, datasets=[dataset("books", lost="gone")]))

    assert len(judged.points) == POINTS_SHOWN
    assert judged.points_omitted == 301 - POINTS_SHOWN
    assert judged.points[0].text.startswith("Dataset books is lost")


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_sentences_show_hostile_names_harmlessly(name: str) -> None:
    """They are printed as they are."""
    (text,) = points(status(streams=[stream(name, **STALLED)]))

    assert text.isprintable() or "\ufffd" in text
    assert all(sign.isprintable() or sign == "\ufffd" for sign in text)
    assert len(text) < 250


@pytest.mark.alone
@pytest.mark.parametrize("world_size", [1, 2, 8, 1 << 40])
def test_a_thousand_streams_are_judged_at_once(world_size: int) -> None:
    """A page is made in this time, whatever clients call themselves."""
    streams = [
        stream(
            f"client {number} rank {number}", number % world_size, world_size, next_sample=number
        )
        for number in range(1000)
    ]

    assert best_seconds(status(streams=streams)) < 0.5


@pytest.mark.alone
def test_runs_that_lack_nearly_all_of_their_ranks_are_judged_at_once() -> None:
    """Two clients that claim to be of a trillion must not keep a thread busy for seconds."""
    found = status(
        streams=[stream(f"run {number}", rank, 1 << 40) for number in range(500) for rank in (0, 1)]
    )

    assert judge(found).points_omitted == 500 - POINTS_SHOWN
    assert best_seconds(found) < 0.5
