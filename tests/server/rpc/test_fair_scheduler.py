"""Many streams share few processors fairly: none has its tenth frame before another its first."""

from __future__ import annotations

import threading

import pytest

from server.rpc.fair_scheduler import (
    CONTENDED_FRAME_BYTES,
    CONTENDED_STREAMS,
    UNREAD_BYTES,
    FairScheduler,
)


def queued(scheduler: FairScheduler, count: int) -> None:
    """Wait until so many stand in the queue."""
    while scheduler._waiting < count:
        assert threading.active_count() > 1


def test_turns_are_taken_in_the_order_of_coming() -> None:
    """A semaphore lets those barge in that come at the right moment, and others wait seconds."""
    scheduler = FairScheduler(at_once=1)
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


def test_a_peer_with_many_streams_gets_no_more_turns_than_one_with_one() -> None:
    """A greedy trainer costs the others at most every second frame."""
    scheduler = FairScheduler(at_once=1)
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


def test_no_more_work_at_once_than_may() -> None:
    """The others would only take the interpreter from those that are about to be done."""
    scheduler = FairScheduler(at_once=2)
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
    assert scheduler._left == 2


def test_in_a_crowd_streams_are_given_small_frames_until_they_are_seen_to_read() -> None:
    """What a client does not read waits in the server's memory, two frames a stream."""
    scheduler = FairScheduler(at_once=1)

    def work() -> None:
        with scheduler.slot("a"):
            pass

    threads = [threading.Thread(target=work) for _ in range(CONTENDED_STREAMS + 1)]
    with scheduler.slot("a"):
        assert scheduler.cap_frame_bytes(1 << 20, had_bytes=0) == 1 << 20
        for thread in threads:
            thread.start()
        queued(scheduler, CONTENDED_STREAMS + 1)
        assert scheduler.cap_frame_bytes(1 << 20, had_bytes=0) == CONTENDED_FRAME_BYTES
        assert scheduler.cap_frame_bytes(1 << 17, had_bytes=0) == 1 << 17
        assert scheduler.cap_frame_bytes(1 << 20, had_bytes=UNREAD_BYTES) == 1 << 20
    for thread in threads:
        thread.join()

    assert scheduler.cap_frame_bytes(1 << 20, had_bytes=0) == 1 << 20


def test_a_turn_is_given_back_after_an_error() -> None:
    """A lost dataset must not stop the streams that are still to be told so."""
    scheduler = FairScheduler(at_once=1)
    with pytest.raises(KeyError), scheduler.slot("a"):
        raise KeyError

    with scheduler.slot("a"):
        assert scheduler._left == 0
    assert scheduler._left == 1
