"""tokenfeed top again and again: when it goes on, when it ends, and how it leaves a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.conftest import ROOT
from tests.support.ports import free_port
from tests.support.statuses import status, stream
from tests.support.terminal import ENTER, LEAVE, terminal
from tests.support.waiting import eventually
from tests.tokenfeed.tools.top.conftest import ScriptedStatus, Start
from tokenfeed.tools.top.text import columns_of


def test_it_goes_on_trying_while_there_is_no_server(start: Start, tmp_path: Path) -> None:
    """A restart must not end what watches it."""
    port = free_port()
    command = ["-m", "client", "top", f"127.0.0.1:{port}", "--count", "1000", "--seconds", "0.1"]
    path = tmp_path / "shown"
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        assert eventually(lambda: "no server answers; trying again" in path.read_text())
        _, server = start(port)
        assert eventually(lambda: "serving" in path.read_text())
        server.stop(0).wait()
        assert eventually(lambda: "trying again" in path.read_text().rpartition("serving")[2])
        start(port)
        assert eventually(lambda: "serving" in path.read_text().rpartition("trying again")[2])
    finally:
        process.kill()
        process.wait()


def test_a_terminal_is_refreshed_in_place_and_left_as_it_was(scripted: ScriptedStatus) -> None:
    """It is a tool for long looks."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("stuck (10.0.0.0:41234) does not read")
        assert shown.settings() != before
        scripted.answer.streams[4].idle_seconds = 0.1
        scripted.answer.streams[4].waits_for_client = 0.0
        assert shown.read_until(lambda: "ATTENTION" not in "".join(shown.screens[-1]))
        shown.press("q")

        assert shown.ended() == 0
        assert shown.settings() == before

    assert shown.written.startswith(ENTER)
    assert LEAVE in shown.written
    assert shown.written.rindex(LEAVE) > shown.written.rindex("\x1b[J")


@pytest.mark.parametrize(("columns", "lines"), [(200, 50), (80, 24), (40, 10), (10, 3), (1, 1)])
def test_a_terminal_of_any_size_is_not_overrun(
    scripted: ScriptedStatus, columns: int, lines: int
) -> None:
    """Also after it was resized."""
    for number in range(300):
        scripted.answer.streams.append(stream(f"客户 {number} " + "x" * 90, datasets=["d" * 64]))
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}, columns=133, lines=37) as shown:
        assert shown.shows("more clients")
        shown.resize(columns, lines)
        drawn = len(shown.screens)
        assert shown.read_until(lambda: len(shown.screens) >= drawn + 3)

        for screen in shown.screens[:drawn]:
            assert len(screen) <= 37
            assert max(map(columns_of, screen)) <= 133
        for screen in shown.screens[-2:]:
            assert len(screen) <= lines
            assert max(map(columns_of, screen)) <= columns


def test_a_terminal_says_that_the_server_is_away_and_back(start: Start) -> None:
    """What is shown meanwhile is old."""
    port = free_port()
    first, server = start(port)
    first.answer.streams.append(stream("llama"))
    command = ["-m", "client", "top", first.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        assert shown.shows("llama")
        server.stop(0).wait()
        assert shown.shows(f"No answer from {first.address} for ")
        assert shown.shows("llama")
        second, _ = start(port)
        second.answer = status(started_ms=1_795_003_590_000)
        assert shown.shows("The server was restarted.")
        assert shown.shows("No client has read yet.")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_signals_leave_a_clean_terminal(
    scripted: ScriptedStatus, number: signal.Signals, code: int
) -> None:
    """Ctrl-C is how most people end it."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("llama")
        if number is signal.SIGINT:
            shown.press("\x03")
        else:
            os.kill(shown.process.pid, number)

        assert shown.ended() == code
        assert shown.settings() == before
    assert "Traceback" not in shown.written
    assert shown.written.rstrip().endswith(LEAVE)


def test_a_stopped_command_gives_the_terminal_back(scripted: ScriptedStatus) -> None:
    """Ctrl-Z, a look at something else, fg."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("llama")
        os.kill(shown.process.pid, signal.SIGTSTP)
        assert shown.read_until(lambda: LEAVE in shown.written)
        assert eventually(
            lambda: Path(f"/proc/{shown.process.pid}/stat").read_text().split()[2] == "T"
        )
        assert shown.settings() == before
        os.kill(shown.process.pid, signal.SIGCONT)
        assert shown.read_until(lambda: shown.written.count(ENTER) == 2)
        drawn = len(shown.screens)
        scripted.answer.streams.append(stream("newcomer"))
        assert shown.shows("newcomer")
        assert len(shown.screens) > drawn


def test_a_refusal_in_a_terminal_is_readable_afterwards(scripted: ScriptedStatus) -> None:
    """Not on the screen that has just been left."""
    scripted.refusal = grpc.StatusCode.UNAUTHENTICATED
    with terminal(["-m", "client", "top", scripted.address], {}) as shown:
        assert shown.ended() == 1
    assert "TOKENFEED_STATUS_TOKEN" in shown.written.rpartition(LEAVE)[2]
