"""The rate limit of polling: evenly spread, and fair."""

from __future__ import annotations

import threading
import time

import pytest

from tokenfeed.server.runtime.threads.poll_rate import (
    POLL_SECONDS,
    STATS_PER_SECOND,
    PollRate,
    pause_seconds,
)


def test_many_threads_together_get_no_more_slots_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each dataset has a thread, and each gather with an error examines files too."""
    poll_rate, taken = PollRate(), []
    end = time.monotonic() + 0.5

    def look() -> None:
        while time.monotonic() < end:
            poll_rate.wait_turn()
            taken.append(time.monotonic())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 20 < len(taken) <= STATS_PER_SECOND * 0.5 + len(threads)


def test_no_file_is_polled_more_than_once_a_second() -> None:
    assert pause_seconds(1) == POLL_SECONDS == 1.0
    assert 7 * pause_seconds(7) == pytest.approx(1.0)


def test_an_unused_slot_is_not_kept_for_later() -> None:
    """Or a quiet minute would end in a burst."""
    poll_rate = PollRate()
    poll_rate.wait_turn()
    time.sleep(0.05)
    began = time.monotonic()
    for _ in range(5):
        poll_rate.wait_turn()

    assert time.monotonic() - began >= 4 / STATS_PER_SECOND
