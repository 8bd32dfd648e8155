"""Ctrl-C and signal handlers anywhere: nothing hangs, and no row is lost or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.waiting import least_seconds

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


# What the main thread runs of grpc/ while feeds are used, and end, in every way.
IN_GRPC = """
import gc, os, sys, threading
import torch
from client import InvalidRequest, RemoteBatches, Unreachable
from tokenfeed.client.transport.channel import describe
import grpc
folder = os.path.dirname(grpc.__file__) + os.sep
calls = []
def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(folder):
        calls.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
def make(**arguments):
    return RemoteBatches(sys.argv[1], 4, 256, order="shuffled", **arguments)
sys.setprofile(profile)
feed = make()
next(feed)
for _ in feed:
    break
for _ in feed.epoch(0):
    break
feed.skip(4)
feed.copy_into(*next(feed))
feed.load_state_dict(feed.state_dict())
print(feed.position, feed.stats(), feed.token_count, feed.batches_per_epoch)
with make() as other:
    next(other)
last = make(num_batches=1)
list(last)
dropped = make()
next(dropped)
del dropped
make().state_dict()
describe(sys.argv[1])
try:
    describe("localhost:1", timeout_seconds=1.0)
except Unreachable:
    pass
try:
    next(make(dataset="none"))
except InvalidRequest:
    pass
except Exception as error:
    print(type(error))
feed.close()
gc.collect()
sys.setprofile(None)
print("calls", calls)
"""


def test_the_main_thread_runs_no_code_of_grpc(address: str) -> None:
    """A Ctrl-C in gRPC's code can leave a lock held, and then everything waits forever."""
    assert run(IN_GRPC, address).endswith("calls []\n")


@pytest.mark.slow
def test_a_signal_handler_may_take_the_state_and_close_the_feed(address: str) -> None:
    """A job that is about to be preempted: the handler runs in the middle of `next`."""
    assert run(CLOSED_BY_HANDLER, address) == "ended\n"


@pytest.mark.alone
@pytest.mark.slow
def test_ctrl_c_while_a_server_does_not_answer_is_quick(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """It is stopped, and another feed of the same process has the connection."""

    def measure() -> float:
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
            seconds = time.monotonic() - began
        finally:
            process.kill()
            server.process.send_signal(signal.SIGCONT)
        assert process.returncode == 3, errors
        assert "Traceback" not in errors
        return seconds

    assert least_seconds(measure, 2.0) < 2.0
