"""Ctrl-C and signal handlers: whatever they interrupt, nothing hangs, is lost or comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from client import RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens

INTERRUPTED = """
import random, signal, sys, time
import torch
from client import RemoteBatches
chance = random.Random(1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
feed, plain = (RemoteBatches(sys.argv[1], 4, 256, order="shuffled") for _ in range(2))
interrupts = 0
while interrupts < 150:
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + chance.random() * 0.01)
        for _ in feed:
            if time.monotonic() - began > 1:
                break  # python swallowed it, in the callback of a weak reference
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
for _ in range(feed.position.samples // 4):
    next(plain)
for _ in range(3):
    assert torch.equal(next(feed)[0], next(plain)[0])
print("interrupts", interrupts)
"""

CLOSED_BY_HANDLER = """
import random, signal, sys
from client import RemoteBatches
chance = random.Random(1)
for _ in range(150):
    feed = RemoteBatches(sys.argv[1], 8, 256)
    next(feed)
    def preempted(*_):
        feed.state_dict()
        feed.close()
    signal.signal(signal.SIGALRM, preempted)
    signal.setitimer(signal.ITIMER_REAL, 1e-4 + chance.random() * 0.01)
    for _ in feed:
        pass
print("ended")
"""

# A shell that starts the tests in the background has Ctrl-C ignored in all that they start.
WAITING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from client import RemoteBatches
train, validation = (RemoteBatches(sys.argv[1], 8, 64, seed=seed) for seed in (1, 2))
next(train)
print("ready", flush=True)
try:
    sys.stdin.readline()
    next(validation)
except KeyboardInterrupt:
    sys.exit(3)
"""


def run(code: str, address: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def address(serve: Serve, write_tokens: WriteTokens) -> str:
    tokens = np.random.default_rng(3).integers(1, 1 << 16, 1 << 22)
    return serve("--data", write_tokens(tokens)).address


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_one_ctrl_c_anywhere_in_a_loop_ends_it_and_the_next_loop_goes_on(address: str) -> None:
    """A notebook cell that is interrupted and run again."""
    assert run(INTERRUPTED, address) == "interrupts 150\n"


def test_a_lock_of_python_s_own_that_an_interrupt_left_behind_is_an_interrupt(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while it waits for a thread to have begun, Thread.start raises RuntimeError."""
    started = threading.Thread.start

    def start_and_be_interrupted(thread: threading.Thread) -> None:
        started(thread)
        if thread.name == "tokenfeed-watch":
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise RuntimeError("release unlocked lock")  # noqa: B904 - as threading does

    with RemoteBatches(address, 4, 256) as feed, RemoteBatches(address, 4, 256) as plain:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_and_be_interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(feed)
        assert torch.equal(next(feed)[0], next(plain)[0])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_signal_handler_may_take_the_state_and_close_the_feed(address: str) -> None:
    """A job that is about to be preempted: the handler runs in the middle of `next`."""
    assert run(CLOSED_BY_HANDLER, address) == "ended\n"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ctrl_c_while_a_server_does_not_answer_is_quick(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """It is stopped, and another feed of the same process has the connection."""
    seconds = []
    for _ in range(3):
        server = serve("--data", write_tokens(np.arange(1, 20_000)))
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, server.address],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            server.process.send_signal(signal.SIGSTOP)
            process.stdin.write("\n")
            process.stdin.flush()
            time.sleep(0.5)
            began = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            seconds.append(time.monotonic() - began)
        finally:
            process.kill()
            server.process.send_signal(signal.SIGCONT)
        assert process.returncode == 3, errors
        assert "Traceback" not in errors

    assert min(seconds) < 2.0
