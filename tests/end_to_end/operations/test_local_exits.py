"""Feeds of local files: every way out of a loop, signals at any moment, and the commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.faults.interrupts import interrupted
from tests.support.commands import run
from tokenfeed.tools.__main__ import main

Captured = pytest.CaptureFixture[str]
WAYS = ("loop", "state_dict", "let_go")
INTERRUPTS = 50
EXIT_SECONDS = 2.0


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    tokens = np.random.default_rng(3).integers(1, 1 << 16, 1 << 22)
    return write_tokens(tokens)


# Each process that leaves is a fork of one that has imported torch, and has no garbage of torch's
# to look through at its end, which takes longer than all else. Prints how long each took to end,
# the best of up to three tries: a machine may be busy with other things.
LEAVE = """
import gc, json, os, signal, sys, time
from client import RemoteBatches
gc.freeze()
signal.signal(signal.SIGINT, signal.default_int_handler)
path, ways, limit_seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])

def leave(way_out, read, prefetch_bytes):
    come, ready = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(ready, 1)
        feed = RemoteBatches(f"file:{path}?read={read}", 8, 64, order="shuffled",
                             prefetch_bytes=prefetch_bytes)
        exec(way_out, globals() | {"feed": feed})
        sys.exit()
    os.close(ready)
    with open(come) as stdout:
        assert stdout.readline() == "ready\\n"
    begun = time.monotonic()
    if "KeyboardInterrupt" in way_out:
        os.kill(process, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code == (3 if "(3)" in way_out else 0), (way_out, read, prefetch_bytes, code)
    return time.monotonic() - begun

for way in ways:
    tries = [leave(*way)]
    while min(tries) >= limit_seconds and len(tries) < 3:
        tries.append(leave(*way))
    print(min(tries), flush=True)
"""
READY = "\nprint('ready', flush=True)\n"
OPENING = """
from tokenfeed.server.datasets import content
scan = content.Content._scan_block
def slow(*arguments):
    time.sleep(0.05)
    return scan(*arguments)
content.Content._scan_block = slow
"""
WAYS_OUT = {
    "break": f"for x, y in feed: break{READY}",
    "state only": f"feed.state_dict(){READY}",
    "iterator alive": f"it = iter(feed); next(it); epoch = iter(feed.epoch(0)); next(epoch){READY}",
    "exception": "for x, y in feed:\n    print('ready', flush=True)\n    raise SystemExit(3)",
    "ctrl-c": "try:\n    for x, y in feed:\n        print('ready', flush=True)\n"
    "        time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(3)",
    "ctrl-c while it is opened": f"{OPENING}try:\n    print('ready', flush=True)\n    next(feed)\n"
    "except KeyboardInterrupt:\n    sys.exit(3)",
    "the end of another thread's feed": f"{OPENING}import threading\n"
    "threading.Thread(target=next, args=(feed, None), daemon=True).start()\ntime.sleep(0.1)"
    + READY,
}


@pytest.mark.alone
@pytest.mark.slow
def test_every_way_out_is_quick_and_silent(write_tokens: WriteTokens, path: Path) -> None:
    """Also while files of a large corpus are still opened, which here takes seconds."""
    ways = [
        (way_out, *mode)
        for way_out in WAYS_OUT.values()
        for mode in (("map", 1 << 20), ("pread", 0))
    ]
    command = [sys.executable, "-c", LEAVE, str(path), json.dumps(ways), str(EXIT_SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    seconds = list(map(float, done.stdout.split()))
    assert len(seconds) == len(ways)
    assert max(seconds) < EXIT_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_ctrl_c_at_any_moment_hangs_nothing_and_loses_no_row(
    path: Path, prefetch_bytes: int
) -> None:
    """Without a thread, the trainer's own thread reads. `python -m tests.faults` has more uses."""
    runs = [(way, f"file:{path}", 1, INTERRUPTS, prefetch_bytes) for way in WAYS]
    for way, found in zip(WAYS, interrupted(runs), strict=True):
        assert "hung" not in found, found
        assert found["wrong"] == 0, way
        assert found["goes_on"], way
        assert found["threads_left"] == [], way
        assert found["raised"] >= 0.9 * INTERRUPTS, way


# The handler runs between any two instructions of `next`.
CLOSED_BY_HANDLER = """
import random, signal, sys, time
from client import RemoteBatches
chance = random.Random(1)
slowest = []
for _ in range(60):
    feed = RemoteBatches(f"file:{sys.argv[1]}", 8, 256, prefetch_bytes=int(sys.argv[2]))
    next(feed)
    def preempted(*_):
        feed.state_dict()
        began = time.monotonic()
        feed.close()
        slowest.append(time.monotonic() - began)
    signal.signal(signal.SIGALRM, preempted)
    signal.setitimer(signal.ITIMER_REAL, 1e-4 + chance.random() * 0.01)
    for _ in feed:
        pass
print(sorted(slowest)[len(slowest) // 2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_a_signal_handler_may_take_the_state_and_close_the_feed(
    path: Path, prefetch_bytes: int
) -> None:
    """A job that is about to be preempted: the loop ends, and nothing is raised in it."""
    assert float(run("-c", CLOSED_BY_HANDLER, path, str(prefetch_bytes))) < 0.5


def test_show_prints_a_batch_of_a_file(write_tokens: WriteTokens, capsys: Captured) -> None:
    """Which tokens are in sample 7? Without a server, without torch."""
    path = write_tokens(range(100, 200))
    arguments = ["--order", "sequential", "--batch-size", "2", "--context-length", "3"]

    assert main(["show", f"file:{path}", *arguments, "--start-sample", "7"]) == 0

    assert capsys.readouterr().out == "sample 7: 121 122 123 124\nsample 8: 124 125 126 127\n"


def test_bench_measures_files(write_tokens: WriteTokens, capsys: Captured) -> None:
    path = write_tokens(np.arange(1, 50_000))

    assert main(["bench", f"file:{path}", "--context-length", "64", "--seconds", "0.2"]) == 0

    found = re.match(r"([\d,]+) batches  [\d.]+ million tokens/s", capsys.readouterr().out)
    assert found is not None
    assert int(found[1].replace(",", "")) > 10


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["describe", "file:{}"], "error: target: is not a server; for files: tokenfeed inspect "),
        (["show", "file:none.bin"], "error: none.bin: cannot be read: No such file or directory"),
        (["show", "file:{}", "--dataset", "x"], "error: --dataset: 'x' is not in the target, only"),
        (["show", "file:{}?vocab=3"], "error: target: has no option 'vocab', only format, dtype"),
        (["show", "file:a.txt"], "error: target: a.txt is text; ingest it first: tokenfeed ingest"),
        (["show", "file:{}", "--context-length", "10000"], "error: --context-length: 10000 is not"),
        (["bench", "file:none.bin"], "error: none.bin: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_done_with_files_ends_in_one_line(
    write_tokens: WriteTokens, arguments: list[str], problem: str, capsys: Captured
) -> None:
    """With what to do instead."""
    path = write_tokens(range(100))

    assert main([each.format(path) for each in arguments]) == 1

    line = capsys.readouterr().err.replace(f"{os.getcwd()}/", "")
    assert line.startswith(problem)
    assert line.count("\n") == 1
