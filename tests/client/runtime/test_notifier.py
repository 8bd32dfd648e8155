"""Waiting ends when it should, whoever else waits."""

from __future__ import annotations

import random
import threading
import time

from tokenfeed.client.runtime.notifier import Notifier

ROUNDS = 40
PAIRS = 10
WAIT_SECONDS = 0.01


def wait_repeatedly(notifier: Notifier) -> None:
    end = time.monotonic() + 4 * WAIT_SECONDS
    while time.monotonic() < end:
        notifier.wait(WAIT_SECONDS)


def test_two_waiters_end_in_time_with_one_notification() -> None:
    """Two threads close a feed. CPython's queues may forget the timeout of one of them, if the
    other one gets the notification just before it.
    """
    chance = random.Random(1)
    for _ in range(ROUNDS):
        notifiers = [Notifier() for _ in range(PAIRS)]
        waiters = [
            threading.Thread(target=wait_repeatedly, args=(notifier,), daemon=True)
            for notifier in notifiers
            for _ in range(2)
        ]
        for waiter in waiters:
            waiter.start()
        time.sleep(WAIT_SECONDS * (0.7 + 0.3 * chance.random()))
        for notifier in notifiers:
            notifier.notify()
        for waiter in waiters:
            waiter.join(2.0)
            assert not waiter.is_alive()


def test_a_notification_wakes_the_waiter() -> None:
    """Or the next one, if there is none yet."""
    notifier = Notifier()
    notifier.notify()
    began = time.monotonic()
    notifier.wait(10.0)
    threading.Timer(0.05, notifier.notify).start()
    notifier.wait(10.0)

    assert time.monotonic() - began < 5.0
