"""Values that are made once, and kept up to a size."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import eventually
from tokenfeed.server.runtime.memo import Memo


def kept(size_max: int) -> Memo[str, bytes]:
    return Memo(len, size_max)


def test_values_are_dropped_by_their_size_and_the_last_one_never() -> None:
    """A list of a million ranges counts for more than a short one."""
    values, made = kept(10), []

    def get(key: str, size: int) -> None:
        assert len(values.get(key, lambda: made.append(key) or bytes(size))) == size

    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4)):
        get(key, size)
    assert made == ["a", "b", "c", "b"]

    get("large", 50)
    get("large", 50)
    get("a", 4)
    assert made == ["a", "b", "c", "b", "large", "a"]


def test_a_value_is_made_by_one_thread_while_others_wait_for_it() -> None:
    """Hundreds of streams may come back at once with the same list."""
    # Both values fit: a thread that begins when all is made finds its value still there.
    values, made, began, may_end = kept(100), [], threading.Event(), threading.Event()

    def make() -> bytes:
        made.append(1)
        began.set()
        assert may_end.wait(10)
        return b"made"

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(values.get, "a", make) for _ in range(4)]
        assert began.wait(10)
        other = values.get("b", lambda: b"at once")
        may_end.set()
        assert [each.result(10) for each in found] == [b"made"] * 4
    assert (other, made) == (b"at once", [1])


def test_a_value_that_could_not_be_made_is_tried_again() -> None:
    """A limit may hold for one request, and the next one is another."""
    values = kept(10)
    with pytest.raises(ZeroDivisionError):
        values.get("a", lambda: bytes(1 // 0))
    assert values.get("a", lambda: b"now") == b"now"


def test_a_value_whose_making_is_interrupted_is_made_by_the_next_one() -> None:
    """By a Ctrl-C, of a thread that others wait for."""
    values, began, may_end = kept(10), threading.Event(), threading.Event()

    def interrupted() -> bytes:
        began.set()
        assert may_end.wait(10)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(values.get, "a", interrupted)
        assert began.wait(10)
        second = pool.submit(values.get, "a", lambda: b"now")
        may_end.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(10)
        assert second.result(10) == b"now"


def waiting_count() -> int:
    """How many threads wait in `get`."""
    return sum(each.f_code is Memo.get.__code__ for each in sys._current_frames().values())


def test_who_waits_for_a_value_that_cannot_be_made_is_told_why() -> None:
    """Not one after the other, each after it has tried for seconds."""
    values, made, began, may_end = kept(10), [], threading.Event(), threading.Event()

    def fail() -> bytes:
        made.append(1)
        began.set()
        assert may_end.wait(10)
        return bytes(1 // 0)

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(values.get, "a", fail)]
        assert began.wait(10)
        found += [pool.submit(values.get, "a", fail) for _ in range(3)]
        assert eventually(lambda: waiting_count() == 3)
        may_end.set()
        for each in found:
            with pytest.raises(ZeroDivisionError):
                each.result(10)
    assert made == [1]
