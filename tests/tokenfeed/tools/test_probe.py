"""tokenfeed probe: the health check of containers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.waiting import eventually
from tokenfeed.tools.probe import main


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000))


def probe(target: str, *options: str) -> tuple[int, str]:
    """Its exit code and its output."""
    command = [sys.executable, "-m", "tokenfeed.tools.probe", target, *options]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    assert answer.stderr == ""
    return answer.returncode, answer.stdout.strip()


def test_a_server_is_serving_at_its_port_and_its_socket(
    serve: Serve, corpus: Path, tmp_path: Path
) -> None:
    server = serve("--data", corpus, "--unix", tmp_path / "feed.sock")

    assert probe(server.address) == (0, "SERVING")
    assert probe(f"unix:{tmp_path}/feed.sock") == (0, "SERVING")
    assert probe(server.address, "--dataset", "train") == (0, "SERVING")


def test_a_truncated_dataset_is_not_serving(serve: Serve, write_tokens: WriteTokens) -> None:
    paths = [write_tokens(np.arange(1, 20_000), name) for name in ("train.bin", "val.bin")]
    server = serve("--data", paths[0], "--data", paths[1])
    os.truncate(paths[1], 100)

    ill = (1, "NOT_SERVING")
    assert eventually(lambda: probe(server.address, "--dataset", "val") == ill)
    assert probe(server.address) == (0, "SERVING")
    assert probe(server.address, "--dataset", "test")[0] == 1


def test_a_server_that_is_away_or_silent_is_not_serving(
    serve: Serve, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"unix:{tmp_path}/nobody.sock"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().out

    server = serve("--data", corpus)
    server.process.send_signal(signal.SIGSTOP)
    assert main([server.address, "--timeout-seconds", "0.5"]) == 1
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().out
    server.process.send_signal(signal.SIGCONT)
    assert main([server.address]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["localhost:99999"], ["a\nb:1"], ["localhost:1", "--timeout-seconds", "inf"],
        ["localhost:1", "--timeout-seconds", "0"], ["localhost:1", "--timeout-seconds", "nan"],
        ["localhost:1", "--dataset", "\udcff"], [],
    ],
)  # fmt: skip
def test_an_invalid_target_is_a_wrong_command_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """gRPC would probe port 34463 instead of 99999, which may be another server's."""
    with pytest.raises(SystemExit) as caught:
        main(words)

    assert caught.value.code == 2
    assert "usage: python -m tokenfeed.tools.probe" in capsys.readouterr().err


def test_a_target_that_is_not_an_address_is_reported_in_one_line() -> None:
    for target in ("", "unix:/" + "a" * 200):
        code, said = probe(target)
        assert code == 1
        assert said.count("\n") == 0


def test_a_ctrl_c_ends_it_as_every_command(serve: Serve, corpus: Path) -> None:
    """With 130, and without a word."""
    server = serve("--data", corpus)
    server.process.send_signal(signal.SIGSTOP)
    command = [sys.executable, "-m", "tokenfeed.tools.probe", server.address]
    command += ["--timeout-seconds", "60"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as waiting:
        files = Path(f"/proc/{waiting.pid}/fd")
        assert eventually(lambda: any("socket:" in os.readlink(each) for each in files.iterdir()))
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=30)
    server.process.send_signal(signal.SIGCONT)

    assert (waiting.returncode, said) == (130, "")
