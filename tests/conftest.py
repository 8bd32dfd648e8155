"""What the tests share: real servers on free ports, and small corpora in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
SHARED_DATA = Path(os.environ.get("TOKENFEED_TEST_DATA", ROOT.parent / "shared" / "data"))

# Examples are the same on every run, and a slow machine is no failure.
settings.register_profile("tokenfeed", derandomize=True, deadline=None)
settings.load_profile("tokenfeed")


@dataclass
class Server:
    """A server process that accepts connections at address, "localhost:PORT"."""

    process: subprocess.Popen[str]
    address: str
    stderr_path: Path

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return self.stderr_path.read_text(errors="replace")

    def connection_count(self) -> int:
        """How many TCP connections are established to its port."""
        port = int(self.address.rpartition(":")[2])
        lines = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]
        ]
        # Local address, and the state: 01 is established.
        return sum(line[1].endswith(f":{port:04X}") and line[3] == "01" for line in lines)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(timeout=10)


Serve = Callable[..., Server]


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    """Lend what starts `python -m server` with some arguments, on a free port, and waits until it
    listens. The servers are stopped behind the with block.  folder: for their logs.
    """
    servers: list[Server] = []

    def start(
        *arguments: str | Path,
        port: int = 0,
        wrapper: Sequence[str] = (),
        stderr: int | None = None,
    ) -> Server:
        stderr_path = folder / f"server-{len(servers)}.log"
        command = [
            *wrapper,
            sys.executable,
            "-m",
            "server",
            *map(str, arguments),
            "--port",
            str(port),
        ]
        with stderr_path.open("w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr or log, text=True
            )
        server = Server(process, "", stderr_path)
        servers.append(server)
        assert process.stdout is not None
        line = process.stdout.readline()
        server.address = f"localhost:{line.rpartition(':')[2].strip()}"
        assert "listening on" in line, server.stderr
        return server

    try:
        yield start
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait(timeout=10)
            assert server.process.stdout is not None
            server.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers as `serving` does; stopped after the test."""
    with serving(tmp_path) as start:
        yield start


WriteTokens = Callable[..., Path]


@pytest.fixture
def write_tokens(tmp_path: Path) -> WriteTokens:
    """Write a raw token file and return its path: write_tokens(tokens, name="train.bin",
    dtype="<u2").
    """

    def write(
        tokens: Sequence[int] | np.ndarray, name: str = "train.bin", dtype: str = "<u2"
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.asarray(tokens).astype(dtype).tofile(path)
        return path

    return write


@pytest.fixture
def shared_data() -> Path:
    """The folder with real text and a tokenizer; the test is skipped where there is none."""
    if not (SHARED_DATA / "tinyshakespeare.txt").exists():
        pytest.skip(
            "set TOKENFEED_TEST_DATA to a folder with tinyshakespeare.txt and gpt2-tokenizer.json"
        )
    return SHARED_DATA
