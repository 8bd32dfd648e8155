"""What the tests share: real servers on free ports, small corpora in files, and how they run in
parallel.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tests.support import lanes
from tests.support.forked import Process, start_server

ROOT = Path(__file__).parents[1]
SHARED_DATA = Path(os.environ.get("TOKENFEED_TEST_DATA", ROOT.parent / "shared" / "data"))

# Examples are the same on every run, and a slow machine is no failure.
settings.register_profile("tokenfeed", derandomize=True, deadline=None)
settings.load_profile("tokenfeed")

# Before torch is imported, here and in what tests start: its threads would wait for each other by
# spinning, on processors that other tests need.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it runs in the background without SIGINT, and so would all children be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOTE = "note"
"""The name under which a test records a line for the end of the report."""

# Most tests wait most of the time: for processes that start, and for timers.
PROCESSES_PER_CORE = 2
# Of a large machine, a container may have a few cores.
PROCESSES_MAX = 16


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run folders in parallel, and single files in this process: where output can be seen."""
    if any(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    return min(PROCESSES_PER_CORE * len(os.sched_getaffinity(0)), PROCESSES_MAX)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> lanes.LaneScheduling:
    return lanes.LaneScheduling(config, log, _folder_of_run(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "proof" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("proof")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("proof")]
    lanes.sort_by_lane(items, _folder_of_run(config))


def pytest_collection_finish() -> None:
    # Tests that collect garbage need not look through what lives as long as the run.
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Outside of the test's own limit of time.
    with lanes.lane_lock(item, _folder_of_run(item.config)):
        return (yield)


def _folder_of_run(config: pytest.Config) -> Path:
    """The folder that all processes of this run share."""
    base: Path = config._tmp_path_factory.getbasetemp()
    return base.parent if hasattr(config, "workerinput") else base


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, ())]
    notes = [text for report in reports for name, text in report.user_properties if name == NOTE]
    if notes:
        terminalreporter.section("measured, and no test")
        for text in notes:
            terminalreporter.write_line(str(text))


@dataclass
class Server:
    """A server process that accepts connections at address, "localhost:PORT"."""

    process: Process
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

    timers: constants that the server has instead of its own, as tests.support.timers takes them.
    """
    servers: list[Server] = []

    def start(
        *arguments: str | Path,
        port: int = 0,
        wrapper: Sequence[str] = (),
        stderr: int | None = None,
        timers: Mapping[str, float] | None = None,
    ) -> Server:
        stderr_path = folder / f"server-{len(servers)}.log"
        words = [*map(str, arguments), "--port", str(port)]
        with stderr_path.open("w") as log:
            process = start_server(words, stderr or log.fileno(), wrapper, timers)
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


_LOGGERS = [
    logging.getLogger(name) for name in ("tokenfeed", "tokenfeed.client", "tokenfeed.server")
]
_LEVELS = [logger.level for logger in _LOGGERS]


@pytest.fixture(autouse=True)
def levels_of_logs() -> Iterator[None]:
    """A command that a test runs in this process sets them, and the next test looks at a log."""
    yield
    for logger, level in zip(_LOGGERS, _LEVELS, strict=True):
        logger.setLevel(level)


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
