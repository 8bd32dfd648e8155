"""What ends calls and connections: never the consumer's thread, and no wait is without an end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from client import RemoteBatches
from client.supervisor import END_SECONDS, Supervisor
from tests.client.conftest import ScriptedServer, honest_frames
from tests.conftest import ROOT
from tests.waiting import eventually
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 3, 5


class Work:
    """Something under way, which ends when it is told to, or never."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.ended = False
        self.looks = 0

    def look(self, now: float) -> float:
        self.looks += 1
        self.ended |= self.ends
        return 60.0


def feed_from(address: str) -> RemoteBatches:
    return RemoteBatches(address, B, T, rank=0, world_size=1)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tokenfeed-")]


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
    call = feed._reader._stream._calls[0]
    held = call._state.condition  # type: ignore[attr-defined]
    held.acquire()
    began = time.monotonic()
    feed.skip(0)
    seconds = [time.monotonic() - began]

    assert [int(next(feed)[0][0, 0]) for _ in range(3)] == [B, 2 * B, 3 * B]
    began = time.monotonic()
    feed.close()
    seconds.append(time.monotonic() - began)

    assert max(seconds) < END_SECONDS + 1
    assert "left a connection behind" in caplog.text
    held.release()
    over.set()
    assert eventually(lambda: threads() == [])


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
    """Its iterator is let go of by the loop; the feed lives on."""
    scripted.windows_per_epoch = 1000
    feed = RemoteBatches(scripted.address, B, T, order="shuffled", rank=0, world_size=1)
    for _ in feed.epoch(0):
        break

    assert eventually(lambda: threads() == ["tokenfeed-supervisor"])
    next(feed)
    feed.close()


def test_all_that_is_under_way_ends_before_the_connections_do() -> None:
    """A call on a closed channel is an error that would be told to somebody."""
    order = []
    work = Work()
    supervisor = Supervisor(lambda: order.append(work.ended))
    supervisor.add(work)
    supervisor.close()

    assert order == [True]


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


def test_a_task_that_cannot_be_looked_after_stops_nobody_from_being_looked_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without its supervisor a feed would wait for a silent server for ever."""
    damaged, work = Work(ends=False), Work(ends=False)
    damaged.look = lambda now: 1 / 0  # type: ignore[method-assign]
    supervisor = Supervisor(lambda: None)
    supervisor.add(damaged)
    supervisor.add(work)

    assert eventually(lambda: work.looks > 1)
    assert "ZeroDivisionError" in caplog.text
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
import client, client.batches
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
"""


def test_importing_the_client_leaves_the_environment_as_it_was() -> None:
    """What the trainer starts later inherits it."""
    subprocess.run([sys.executable, "-c", ENVIRONMENT], cwd=ROOT, check=True, timeout=60)
