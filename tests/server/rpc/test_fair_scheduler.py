"""Many streams share few CPUs fairly: none gets its tenth frame before another its first."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.support.waiting import eventually
from tokenfeed.server.rpc import fair_scheduler
from tokenfeed.server.rpc.fair_scheduler import CallEnded, FairScheduler


def queued(scheduler: FairScheduler, count: int) -> None:
    """Wait until this many threads wait."""
    assert eventually(lambda: len(scheduler._starting) + len(scheduler._waiting) >= count)


def test_slots_are_given_first_come_first_served() -> None:
    """A semaphore lets late threads overtake, and others wait for seconds."""
    scheduler = FairScheduler(slot_count=1)
    order: list[int] = []

    def work(number: int) -> None:
        with scheduler.slot("a"):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    with scheduler.slot("a"):
        for number, thread in enumerate(threads):
            thread.start()
            queued(scheduler, number + 1)
        assert order == []
    for thread in threads:
        thread.join()

    assert order == list(range(20))


def test_a_peer_with_many_streams_gets_no_more_slots_than_one_with_one() -> None:
    """A greedy trainer costs the others at most every second frame."""
    scheduler = FairScheduler(slot_count=1)
    order: list[str] = []

    def work(peer: str) -> None:
        with scheduler.slot(peer):
            order.append(peer)

    threads = [threading.Thread(target=work, args=(peer,)) for peer in "aaaaaabbc"]
    with scheduler.slot("a"):
        for number, thread in enumerate(threads):
            thread.start()
            queued(scheduler, number + 1)
    for thread in threads:
        thread.join()

    assert "".join(order) == "abcabaaaa"


def test_no_more_threads_work_than_there_are_slots() -> None:
    """More would only take the interpreter from those that are almost done."""
    scheduler = FairScheduler(slot_count=2)
    working: list[int] = []
    most = []
    lock = threading.Lock()

    def work(number: int) -> None:
        for _ in range(200):
            with scheduler.slot("a"):
                with lock:
                    working.append(number)
                    most.append(len(working))
                with lock:
                    working.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) <= 2
    assert not scheduler._running


def test_fewer_threads_work_while_a_stream_waits_for_its_first_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then processors are needed for connections; afterwards all of them may work again."""
    monkeypatch.setattr(fair_scheduler, "_HANG_SECONDS", 60.0)
    scheduler = FairScheduler(slot_count=3, starting_slot_count=1)
    turns = {name: threading.Event() for name in ("full", "starting", "others")}
    at_work: set[str] = set()

    def work(name: str, *, starts: bool) -> None:
        with scheduler.slot("a", starts=starts):
            at_work.add(name)
            turns[name.partition(" ")[0]].wait(10)
        at_work.remove(name)

    def start(name: str, *, starts: bool = False) -> threading.Thread:
        thread = threading.Thread(target=work, args=(name,), kwargs={"starts": starts})
        thread.start()
        return thread

    threads = [start("full 1"), start("full 2")]
    assert eventually(lambda: at_work == {"full 1", "full 2"})
    threads.append(start("starting", starts=True))
    queued(scheduler, 1)
    threads += [start("others 1"), start("others 2"), start("others 3")]
    queued(scheduler, 4)
    turns["full"].set()
    assert eventually(lambda: at_work == {"starting", "others 1", "others 2"})
    turns["starting"].set()
    assert eventually(lambda: at_work == {"others 1", "others 2", "others 3"})
    turns["others"].set()
    for thread in threads:
        thread.join()

    assert len(scheduler._running) == len(scheduler._waiting) == len(scheduler._starting) == 0


def served_in_turn(waiting: Sequence[str]) -> list[str]:
    """Return the order in which threads get the only slot; they come in this one. Those that start
    have a "*".
    """
    scheduler = FairScheduler(slot_count=1)
    served: list[str] = []

    def work(name: str) -> None:
        with scheduler.slot(name, starts=name.startswith("*")):
            served.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in waiting]
    with scheduler.slot("a"):
        for number, thread in enumerate(threads):
            thread.start()
            queued(scheduler, number + 1)
    for thread in threads:
        thread.join()
    return served


def test_the_first_frame_of_a_stream_comes_before_the_next_ones_of_others() -> None:
    """200 ranks that start together: none waits until others have their buffers full."""
    assert served_in_turn(["a", "b", "*c", "*d"]) == ["*c", "*d", "a", "b"]


def test_streams_that_start_do_not_hold_up_others_for_ever() -> None:
    """A client that connects again and again gets at most three frames of four."""
    served = served_in_turn(["a", "b", *(f"*{number}" for number in range(8))])

    assert served == ["*0", "*1", "*2", "a", "*3", "*4", "*5", "b", "*6", "*7"]


def test_a_scheduler_counts_those_that_wait() -> None:
    """The size of frames follows from it."""
    scheduler = FairScheduler(slot_count=1)

    def work() -> None:
        with scheduler.slot("a"):
            pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    with scheduler.slot("a"):
        assert scheduler.waiting_count == 0
        for thread in threads:
            thread.start()
        queued(scheduler, 3)
        assert scheduler.waiting_count == 3
    for thread in threads:
        thread.join()

    assert scheduler.waiting_count == 0


def test_a_slot_is_released_after_an_error() -> None:
    """A failed dataset must not block the streams that have not got its error yet."""
    scheduler = FairScheduler(slot_count=1)
    with pytest.raises(KeyError), scheduler.slot("a"):
        raise KeyError

    with scheduler.slot("a"):
        assert len(scheduler._running) == 1
    assert not scheduler._running


def test_a_slot_that_hangs_stops_no_other_one() -> None:
    """One file that is not read must not stop all streams of a dataset at the next connection."""
    scheduler = FairScheduler(slot_count=2, starting_slot_count=1)
    is_over, served = threading.Event(), list[str]()

    def hang() -> None:
        with scheduler.slot("a"):
            is_over.wait(60)

    def work(name: str) -> None:
        with scheduler.slot(name, starts=name.startswith("*")):
            served.append(name)

    names = ["*b", "c", "*d", "e"]
    hanging = threading.Thread(target=hang)
    hanging.start()
    assert eventually(lambda: bool(scheduler._running))
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: sorted(served) == sorted(names)), served
    finally:
        is_over.set()
        for thread in (hanging, *threads):
            thread.join()


def test_a_call_that_has_ended_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client makes another one, and each occupies a thread. The others keep their places."""
    monkeypatch.setattr(fair_scheduler, "_HANG_SECONDS", 0.02)
    scheduler = FairScheduler(slot_count=1)
    has_ended, ended, served = threading.Event(), list[int](), list[int]()

    def work(number: int) -> None:
        is_active = (lambda: not has_ended.is_set()) if number in (1, 3) else (lambda: True)
        try:
            with scheduler.slot("a" if number < 3 else "b", is_active=is_active):
                served.append(number)
        except CallEnded:
            ended.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    with scheduler.slot("a"):
        for number, thread in enumerate(threads):
            thread.start()
            queued(scheduler, number + 1)
        has_ended.set()
        assert eventually(lambda: len(ended) == 2)
        assert scheduler.waiting_count == 2
    for thread in threads:
        thread.join()

    assert (sorted(ended), served) == ([1, 3], [0, 2])
    assert not scheduler._running


def test_a_slot_that_is_assigned_to_a_call_as_it_ends_is_free_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a dataset would lose its slots one by one."""
    monkeypatch.setattr(fair_scheduler, "_HANG_SECONDS", 0.02)
    scheduler = FairScheduler(slot_count=1)
    is_released = threading.Event()

    def is_active() -> bool:
        is_released.set()
        assert eventually(lambda: scheduler.waiting_count == 0)
        return False

    def work() -> None:
        with pytest.raises(CallEnded), scheduler.slot("a", is_active=is_active):
            pass

    thread = threading.Thread(target=work)
    with scheduler.slot("a"):
        thread.start()
        assert is_released.wait(60)
    thread.join()

    assert not scheduler._running
