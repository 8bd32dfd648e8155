"""What ends calls and connections: never the consumer's thread, and no wait is without an end."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from client import Credentials, RemoteBatches, Timeouts
from tests.client.conftest import ScriptedServer, StartScripted, honest, honest_frames
from tests.conftest import ROOT
from tests.support.waiting import eventually
from tokenfeed.client.runtime.supervisor import END_SECONDS, Supervisor, Task
from tokenfeed.client.source.row_stream import RowStream
from tokenfeed.errors import Unreachable
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 3, 5


class Work:
    """Something under way, which ends when it is told to, or never."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.ended = False
        self.looks = 0

    def due_seconds(self, now: float) -> float:
        self.looks += 1
        return 0.0 if self.ends else 60.0

    def cancel(self) -> None:
        self.ended = True


def feed_from(address: str, **options: Any) -> RemoteBatches:
    return RemoteBatches(address, B, T, rank=0, world_size=1, **options)


@pytest.fixture(autouse=True)
def _others() -> Iterator[None]:
    """Threads that other tests have left are not looked at."""
    OTHERS[:] = threading.enumerate()
    yield
    OTHERS.clear()


OTHERS: list[threading.Thread] = []


def threads() -> list[str]:
    """Threads of feeds that a test has started."""
    own = [t.name for t in threading.enumerate() if t not in OTHERS]
    return [name for name in own if name.startswith("tokenfeed-")]


@pytest.mark.alone
def test_a_lock_of_grpc_s_that_is_held_for_good_holds_up_no_close_and_no_later_batch(
    scripted: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An interrupt within gRPC's own code has left one so; what hangs is left behind."""
    over = threading.Event()

    def stalls(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(honest_frames(request, B))[1]
        over.wait(60)

    scripted.scripts = [stalls]
    feed = feed_from(scripted.address)
    assert next(feed)[0][0, 0] == 0
    assert feed._reader is not None
    call = feed._reader.rows._calls[0].messages
    with call._state.condition:  # type: ignore[attr-defined]
        began = time.monotonic()
        feed.skip(0)
        seconds = [time.monotonic() - began]

        assert [int(next(feed)[0][0, 0]) for _ in range(3)] == [B, 2 * B, 3 * B]
        began = time.monotonic()
        feed.close()
        seconds.append(time.monotonic() - began)
    over.set()

    assert max(seconds) < END_SECONDS + 1
    assert "connection abandoned" in caplog.text
    assert eventually(lambda: threads() == [])


def test_a_call_that_hangs_while_it_is_cancelled_does_not_prevent_a_failover(
    start_scripted: StartScripted,
) -> None:
    """An abandoned epoch is not awaited, and the next one is supervised."""
    over = threading.Event()
    silent, other = start_scripted(), start_scripted()

    def stalls(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(honest_frames(request, B))[1]
        over.wait(60)

    silent.scripts = [stalls] * 4
    for server in (silent, other):
        server.windows_per_epoch = 6 * B
    with RemoteBatches(
        [silent.address, other.address], B, T, order="shuffled", rank=0, world_size=1,
        timeouts=Timeouts(read_seconds=0.5),
    ) as feed:  # fmt: skip
        epoch = iter(feed.epoch(0))
        next(epoch)
        (stream,) = (task for task in tasks(feed) if isinstance(task, RowStream))
        with stream._calls[0].messages._state.condition:  # type: ignore[attr-defined]
            del epoch
            assert sum(1 for _ in feed.epoch(0)) == 6
        over.set()


def hangs_at(call: int, over: threading.Event) -> Callable[[], str]:
    """A token function of which one call does not come back."""
    calls = itertools.count(1)

    def token() -> str:
        if next(calls) == call:
            over.wait(60)
        return "abcd"

    return token


@pytest.mark.alone
@pytest.mark.parametrize("call", [1, 2], ids=["at the first contact", "later"])
def test_closing_ends_a_wait_for_who_hangs_in_code_of_the_caller_s(
    scripted: ScriptedServer, call: int
) -> None:
    """No call is under way that could be cancelled."""
    over, scripted.scripts = threading.Event(), [honest]
    feed = feed_from(
        scripted.address,
        credentials=Credentials(token=hangs_at(call, over)),
        timeouts=Timeouts(reconnect_seconds=None),
    )
    threading.Timer(0.5, feed.close).start()
    began = time.monotonic()
    for _ in feed:
        pass

    assert time.monotonic() - began < 0.5 + END_SECONDS + 1
    over.set()


def test_the_timeout_ends_a_wait_for_user_code_that_hangs(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt ends that could count it."""
    monkeypatch.setattr("tokenfeed.client.source.failover._ATTEMPT_GRACE_SECONDS", 0.2)
    monkeypatch.setattr("tokenfeed.client.runtime.supervisor.END_SECONDS", 0.2)
    over = threading.Event()
    for ask in (next, RemoteBatches.state_dict):
        feed = feed_from(
            scripted.address,
            credentials=Credentials(token=hangs_at(1, over)),
            timeouts=Timeouts(read_seconds=0.3, reconnect_seconds=0.3),
        )
        with pytest.raises(Unreachable, match="the request for them hangs"):
            ask(feed)  # type: ignore[operator]
        feed.close()
    over.set()


def tasks(feed: RemoteBatches) -> list[Task]:
    return feed._datasets._supervisor._tasks  # type: ignore[attr-defined]


def test_a_feed_that_was_let_go_of_leaves_no_thread_and_no_connection(
    scripted: ScriptedServer,
) -> None:
    """Also one that only asked for its state."""
    feed = feed_from(scripted.address)
    next(feed)
    feed_from(scripted.address).state_dict()
    del feed

    assert eventually(lambda: threads() == [])


def test_an_epoch_that_was_left_in_the_middle_leaves_no_receiver(scripted: ScriptedServer) -> None:
    """The loop frees its iterator; the feed stays."""
    scripted.windows_per_epoch = 1000
    feed = RemoteBatches(scripted.address, B, T, order="shuffled", rank=0, world_size=1)
    for _ in feed.epoch(0):
        break

    assert eventually(lambda: threads() == ["tokenfeed-supervisor"])
    next(feed)
    feed.close()


def test_all_that_is_under_way_ends_before_the_connections_do() -> None:
    """A call on a closed channel is an error that would be raised."""
    order = []
    work = Work()
    supervisor = Supervisor(lambda: order.append(work.ended))
    supervisor.add(work)
    supervisor.close()

    assert order == [True]


def test_a_close_waits_for_a_thread_that_cancels_what_has_ended_meanwhile() -> None:
    """At the end of the process, it may be in gRPC."""
    order, work = [], Work()

    def cancel() -> None:
        work.ended = True
        time.sleep(0.2)
        order.append("cancelled")

    work.cancel = cancel  # type: ignore[method-assign]
    supervisor = Supervisor(lambda: order.append("closed"))
    supervisor.add(work)
    supervisor.close()

    assert order == ["cancelled", "closed"]


def test_a_task_that_ends_late_is_cancelled_ten_times_a_second() -> None:
    """Each of them is a thread."""
    cancelled, work = [], Work()
    work.cancel = lambda: cancelled.append(0)  # type: ignore[method-assign]
    supervisor = Supervisor(lambda: None)
    supervisor.add(work)
    assert eventually(lambda: len(cancelled) > 2)
    work.ended = True
    supervisor.close()

    assert len(cancelled) < 100


STARTING = """
import threading, time
from tokenfeed.client.runtime.threads import start_thread

start = threading.Thread.start

def start_late(thread):
    time.sleep(0.3)
    start(thread)

threading.Thread.start = start_late
start_thread(lambda: print("runs", flush=True), "late")
"""


def test_a_process_ends_once_all_of_its_threads_have_begun() -> None:
    """One that first runs while Python ends can take the process with it."""
    done = subprocess.run(
        [sys.executable, "-c", STARTING], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")


@pytest.mark.alone
def test_what_does_not_end_is_waited_for_not_for_ever() -> None:
    closed = threading.Event()
    work = Work(ends=False)
    supervisor = Supervisor(closed.set)
    supervisor.add(work)
    began = time.monotonic()
    supervisor.close()

    assert closed.wait(5)
    assert time.monotonic() - began < END_SECONDS + 1
    assert work.looks > 1


def test_a_task_whose_check_fails_does_not_prevent_the_checks_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without its supervisor a feed would wait for a silent server for ever."""
    damaged, work = Work(ends=False), Work(ends=False)
    damaged.due_seconds = lambda now: 1 / 0  # type: ignore[method-assign]
    supervisor = Supervisor(lambda: None)
    supervisor.add(damaged)
    supervisor.add(work)

    assert eventually(lambda: work.looks > 1)
    assert "ZeroDivisionError" in caplog.text
    supervisor.close()


def test_a_task_that_hangs_while_it_is_cancelled_does_not_prevent_other_cancellations() -> None:
    """Not even itself from being looked after, in case that helps."""
    over, stuck, work = threading.Event(), Work(), Work()
    stuck.cancel = lambda: over.wait(60)  # type: ignore[assignment, method-assign]
    supervisor = Supervisor(lambda: None)
    supervisor.add(stuck)
    assert eventually(lambda: stuck.looks > 1)
    supervisor.add(work)

    assert eventually(lambda: work.ended)
    assert threads().count("tokenfeed-cancel") == 1
    over.set()
    stuck.ended = True
    supervisor.close()


def test_an_add_that_was_interrupted_makes_no_second_supervisor() -> None:
    """A Ctrl-C just after the thread has begun, before anybody knows."""
    supervisor = Supervisor(lambda: None)
    supervisor.add(Work(ends=False))
    assert eventually(lambda: threads() == ["tokenfeed-supervisor"])
    supervisor._started = False
    supervisor.add(Work(ends=False))

    assert eventually(lambda: supervisor._started)
    assert eventually(lambda: threads() == ["tokenfeed-supervisor"])
    supervisor.close()


def test_a_retired_supervisor_ends_with_the_last_of_its_tasks() -> None:
    """What still runs on connections that were left behind is looked after until it ends."""
    closed = threading.Event()
    stuck, running = Work(ends=False), Work(ends=False)
    supervisor = Supervisor(closed.set)
    supervisor.add(stuck)
    supervisor.add(running)
    supervisor.retire(stuck)
    assert eventually(lambda: running.looks > 0)
    assert not closed.is_set()

    running.ended = True
    supervisor.wake()

    assert closed.wait(5)


ENVIRONMENT = """
import os
before = dict(os.environ)
import client, tokenfeed.client.batches.remote
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
"""


def test_importing_the_client_leaves_the_environment_as_it_was() -> None:
    """What the trainer starts later inherits it."""
    subprocess.run([sys.executable, "-c", ENVIRONMENT], cwd=ROOT, check=True, timeout=60)
