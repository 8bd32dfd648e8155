"""Which GET comes next: the one that is due first, of streams that have less than their share."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.waiting import eventually
from tokenfeed.server.storage.objects.fetcher import Fetch, Fetcher

AT_ONCE = 4


class Store:
    """Answers when it is told to. begun: the first bytes of the GETs, in order."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._lock = threading.Lock()
        self._may_end = threading.Semaphore(0)

    def get(self, file: int, first_byte: int, end_byte: int) -> bytes:
        with self._lock:
            self.begun.append(first_byte)
        assert self._may_end.acquire(timeout=20)
        if first_byte < 0:
            raise OSError(5, "fails")
        return bytes(end_byte - first_byte)

    def fetches(self, *firsts: int) -> list[Fetch]:
        found = [Fetch(0, first, first + 10, self.get) for first in firsts]
        for fetch in found:
            fetch.users = 1
        return found

    def end(self, count: int = 1) -> None:
        self._may_end.release(count)

    def require_begun(self, *firsts: int) -> None:
        assert eventually(lambda: len(self.begun) >= len(firsts))
        assert sorted(self.begun) == sorted(firsts)


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store()
    yield found
    found.end(1000)


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher(AT_ONCE)


def test_no_more_than_a_number_are_on_their_way(store: Store, fetcher: Fetcher) -> None:
    """A store answers SlowDown to a server that asks for thousands at once."""
    fetches = store.fetches(*range(20))
    fetcher.submit(fetches, 0.0, stream=1)
    store.require_begun(0, 1, 2, 3)
    store.end(2)
    store.require_begun(0, 1, 2, 3, 4, 5)
    store.end(1000)
    assert all(fetch.wait(20) for fetch in fetches)
    assert all(fetch.content == bytes(10) for fetch in fetches)


def test_what_is_due_first_comes_first(store: Store, fetcher: Fetcher) -> None:
    """Rows of the next frame before those of one that is sent in a minute."""
    fetcher.submit(store.fetches(0, 1, 2, 3), 0.0, stream=1)
    store.require_begun(0, 1, 2, 3)
    late, soon = store.fetches(100, 101), store.fetches(200, 201)
    fetcher.submit(late, 60.0, stream=1)
    fetcher.submit(soon, 1.0, stream=1)
    fetcher.hurry(late[1:])
    store.end(2)
    store.require_begun(0, 1, 2, 3, 101, 200)
    store.end(1000)
    assert all(fetch.wait(20) for fetch in late + soon)
    assert len(store.begun) == 8, "one that was hurried is fetched once"


def test_a_greedy_stream_leaves_the_others_their_share(store: Store, fetcher: Fetcher) -> None:
    """One that asks for thousands of rows ahead must not hold up one that needs a row now, even if
    all of it is due earlier.
    """
    fetcher.submit(store.fetches(*range(100)), 0.0, stream=1)
    store.require_begun(0, 1, 2, 3)
    fetcher.submit(store.fetches(1000, 1001, 1002), 60.0, stream=2)
    store.end(2)
    store.require_begun(0, 1, 2, 3, 1000, 1001)
    store.end(2)
    assert eventually(lambda: len(store.begun) == 8)
    assert 1002 in store.begun or 4 in store.begun


def test_what_is_not_needed_any_more_is_not_fetched(store: Store, fetcher: Fetcher) -> None:
    """Of streams that have gone away, or datasets that were closed."""
    fetcher.submit(store.fetches(0, 1, 2, 3), 0.0, stream=1)
    store.require_begun(0, 1, 2, 3)
    left, needed = store.fetches(10, 11)
    left.users = 0
    fetcher.submit([left, needed], 0.0, stream=1)
    store.end(1000)
    assert needed.wait(20)
    assert left.wait(20)
    assert 10 not in store.begun
    assert left.content is None


def test_what_has_failed_for_want_of_a_thread_is_not_done_again(
    store: Store, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would end on that, and the next GET would wait for ever in its place."""
    with monkeypatch.context() as without_threads:
        without_threads.setattr(fetcher._threads, "submit", lambda _: False)
        (failed,) = store.fetches(5)
        fetcher.submit([failed], 60.0, stream=1)
    assert "no thread can be started" in str(failed.error)
    fetcher.hurry([failed])
    store.end(2)
    for first in (6, 7):
        (later,) = store.fetches(first)
        fetcher.submit([later], 60.0, stream=1)
        assert later.wait(20)
    assert store.begun == [6, 7]


def test_an_error_is_kept_for_who_waits(store: Store, fetcher: Fetcher) -> None:
    """Its thread goes on with others."""
    bad, good = store.fetches(-5, 5)
    fetcher.submit([bad, good], 0.0, stream=1)
    store.end(2)
    assert bad.wait(20)
    assert good.wait(20)
    assert str(bad.error) == "[Errno 5] fails"
    assert good.content == bytes(10)


@pytest.mark.parametrize("seed", range(20))
def test_the_next_one_is_the_one_that_a_look_at_each_stream_finds(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With 512 streams such a look took more than a third of the time of a GET, under the lock."""
    chance, limit = random.Random(seed), 8
    fetcher = Fetcher(limit)
    monkeypatch.setattr(fetcher._threads, "submit", lambda _: True)
    waiting: list[Fetch] = []
    in_flight: list[Fetch] = []
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for _ in range(600):
        now += 1.0
        action = chance.choice(("submit", "hurry", "next", "next", "end"))
        if action == "submit":
            made = [Fetch(0, 0, 10, lambda *_: b"") for _ in range(chance.randrange(4))]
            fetcher.submit(made, chance.randrange(100), chance.randrange(12))
            waiting += made
        if action == "hurry":
            fetcher.hurry(chance.sample(waiting + in_flight, min(2, len(waiting))))
        if action == "end" and in_flight:
            fetcher._end(in_flight.pop(chance.randrange(len(in_flight))).stream)
        if action == "next" and len(in_flight) < limit:
            own = Counter(each.stream for each in in_flight)
            share = max(1, limit // max(1, len({each.stream for each in waiting + in_flight})))
            within = [each for each in waiting if own[each.stream] < share] or waiting
            found = fetcher._next()
            if found is None:
                assert not waiting
                continue
            assert found in within
            assert found.due == min(each.due for each in within)
            waiting.remove(found)
            in_flight.append(found)
    assert {each.stream for each in waiting + in_flight} == set(fetcher._left)
