"""A Ray cluster on this machine, whose nodes can be killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually


class Cluster:
    """Nodes of Ray on this machine, each a group of processes with one processor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[subprocess.Popen[str]] = []
        self._stopped: list[int] = []
        self.address = f"127.0.0.1:{free_port()}"

    def add(self) -> subprocess.Popen[str]:
        """Start a node, and wait until it runs."""
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
        command += ["--num-cpus", "1", "--object-store-memory", "100000000"]
        command += ["--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
        if self._nodes:
            command += ["--address", self.address]
        else:
            command += ["--head", "--port", self.address.partition(":")[2]]
            command += ["--temp-dir", str(self._folder), "--include-dashboard", "false"]
        log = self._folder / f"node-{len(self._nodes)}.log"
        with log.open("w") as file:
            node = subprocess.Popen(command, stdout=file, stderr=file, text=True, process_group=0)
        self._nodes.append(node)
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return node

    def stop_at_work(self, node: subprocess.Popen[str]) -> bool:
        """Stop a process of a node in the middle of a unit; say whether there was one at work."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if encodes(process) and os.getpgid(int(status(process)[1])) == node.pid:
                    os.kill(int(process.name), signal.SIGSTOP)
                    assert eventually(lambda: status(process)[0] == "T")  # noqa: B023
                    if encodes(process):
                        self._stopped.append(int(process.name))
                        return True
                    # It was done just before.
                    os.kill(int(process.name), signal.SIGCONT)
        return False

    def kill(self, node: subprocess.Popen[str]) -> None:
        """All of a node at once, as when its machine loses power."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        for node in self._nodes:
            if node.poll() is None:
                self.kill(node)
        for process_id in self._stopped:  # they have groups of their own, and notice nothing
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


def encodes(process: Path) -> bool:
    """Ray names processes after what they do."""
    return (process / "cmdline").read_bytes().startswith(b"ray::read_and_encode")


def status(process: Path) -> list[str]:
    """Its state, its parent, and more."""
    return (process / "stat").read_text().rpartition(")")[2].split()


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Lend a cluster without nodes, and nobody else one meanwhile: Ray finds every cluster of its
    machine. The test is skipped where Ray is not installed.
    """
    pytest.importorskip("ray", exc_type=ImportError)
    # Its sockets lie there, and the path of one may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="tokenfeed-ray-"))
    made = Cluster(folder)
    try:
        with Path(tempfile.gettempdir(), "tokenfeed-ray.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
