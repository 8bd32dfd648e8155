"""Signals that stop a server or reload its tokens, at any time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tests.conftest import ROOT, Serve, WriteTokens

Starting = tuple[subprocess.Popen[str], IO[str]]


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000))


@pytest.mark.parametrize("pause_seconds", [0.0, 0.0001, 0.0004])
def test_two_signals_in_quick_succession_end_it_like_one(
    serve: Serve, corpus: Path, pause_seconds: float
) -> None:
    """An operator presses Ctrl-C twice, and Kubernetes adds its own."""
    server = serve("--data", corpus)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(pause_seconds)

    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.stderr


def test_a_burst_of_signals_ends_it_like_one(serve: Serve, corpus: Path) -> None:
    """Each used to be handled within the handler of the one before."""
    server = serve("--data", corpus)
    kinds = random.Random(1).choices([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], k=1000)
    end = time.monotonic() + 5
    while server.process.poll() is None and time.monotonic() < end:
        for kind in kinds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.process.pid, kind)
        server.process.poll()

    assert server.process.wait(timeout=10) == 0
    assert "Traceback" not in server.stderr


def test_a_signal_that_comes_with_the_first_line_is_not_lost(serve: Serve, corpus: Path) -> None:
    """It comes while the main thread begins to wait for it."""
    for milliseconds in range(0, 12, 3):
        server = serve("--data", corpus)
        time.sleep(milliseconds / 1000)
        assert server.stop() == 0


def test_a_hangup_does_not_end_the_server(serve: Serve, corpus: Path) -> None:
    """Without tokens there is nothing to reload, and a closed terminal is not a reason to stop."""
    server = serve("--data", corpus)
    server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 5
    while "SIGHUP ignored" not in server.stderr and time.monotonic() < end:
        time.sleep(0.02)

    assert "SIGHUP ignored" in server.stderr
    assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_starts_is_ended_at_once(starting: Starting, number: signal.Signals) -> None:
    process, _ = starting
    process.send_signal(number)

    assert process.wait(timeout=2) == 0


def test_a_hangup_while_it_starts_ends_nothing(
    starting: Starting,
) -> None:
    """A script that renews tokens does not know whether the server is up already."""
    process, tokens = starting
    process.send_signal(signal.SIGHUP)
    tokens.write("sesame\n")
    tokens.close()
    assert process.stdout is not None
    assert "listening on" in process.stdout.readline()
    process.terminate()

    assert process.wait(timeout=5) == 0


@pytest.fixture
def starting(corpus: Path, tmp_path: Path) -> Iterator[Starting]:
    """A server that waits for its tokens, and the pipe that it waits for them at."""
    token_pipe = tmp_path / "tokens"
    os.mkfifo(token_pipe)
    command = [
        sys.executable, "-m", "server", "--data", str(corpus), "--port", "0",
        "--host", "127.0.0.1", "--token-file", str(token_pipe),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        # Is open once the server has opened the other end.
        with token_pipe.open("w") as writer:
            yield process, writer
        process.kill()
