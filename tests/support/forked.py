"""Python processes that are forked from one that has imported what they need already.

To import the server takes half a second of processor time, to import ingest three quarters; the
tests start hundreds of such processes. What these do after their imports is the same: each has its
own process, arguments, environment and end. With TOKENFEED_TEST_COLD in the environment, each
starts as a user starts it.

Run: python -m tests.support.forked SOCKET MODULE..., which imports the modules and forks
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from tests.support.timers import set_timers

ROOT = Path(__file__).parents[2]
COLD = "TOKENFEED_TEST_COLD"
IMPORTS = {
    "server": ("tokenfeed.server.cli.serve",),
    "tokenfeed.server.ingest": ("tokenfeed.server.ingest.run", "pyarrow.parquet", "tokenizers"),
}
"""What is imported before the fork, by the module that runs then."""
IMPORTS_OF_SCRIPTS = ("torch.distributed.checkpoint", "client")
_LOCK = threading.Lock()
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ForkedProcess:
    """A process that runs as `python -m MODULE ARGUMENT...` or `python SCRIPT ARGUMENT...` does, in
    a session of its own, with methods of subprocess.Popen.

    pid: its process id.  stdout: the reading end of the pipe that it prints to, if there is one.
    returncode: None until it is known to have ended; then its exit code, or minus the number of the
    signal that ended it.
    """

    stdout: TextIO | None = None
    returncode: int | None = None

    def __init__(
        self,
        words: Sequence[str],
        stdout: int,
        stderr: int,
        timers: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        """Start it.

        words: the name of the module or the path of the script, which ends in .py, and its
        arguments.  stdout, stderr: descriptors to which it prints.  timers: constants that it has
        instead of its own, see tests.support.timers.  environment: variables that it has beside
        those of this process.  cwd: the folder where it runs.
        """
        request = {
            "words": words,
            "timers": timers or {},
            "environment": os.environ | (environment or {}),
            "cwd": str(cwd),
        }
        message = json.dumps(request).encode()
        size = len(message).to_bytes(4, "big")
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile()
        # One request at a time, whichever thread makes it.
        with theirs, _LOCK:
            parent = _parent(IMPORTS.get(words[0], IMPORTS_OF_SCRIPTS))
            socket.send_fds(parent, [size], [stdout, stderr, theirs.fileno()])
            parent.sendall(message)
            self.pid = self._answer()

    def _answer(self) -> int:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the process that forks has ended")
        return int(line)

    def poll(self) -> int | None:
        """Return its exit code if it has ended, else None."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code.  Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            answer = select.poll()
            answer.register(self._socket, select.POLLIN)
            if not answer.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = self._answer()
            self._answers.close()
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[str]


def start_server(
    arguments: Sequence[str],
    stderr: int,
    wrapper: Sequence[str] = (),
    timers: Mapping[str, float] | None = None,
) -> Process:
    """Start `python -m server`, whose stdout is a pipe.

    stderr: the descriptor to which it logs.  wrapper: words before the command; with them, it is no
    fork.  timers: constants that it has instead of its own, see tests.support.timers.
    """
    if wrapper or COLD in os.environ:
        module = ["tests.support.timers", json.dumps(timers)] if timers else ["server"]
        command = [*wrapper, sys.executable, "-m", *module, *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    read, write = os.pipe()
    process = ForkedProcess(["server", *arguments], write, stderr, timers)
    os.close(write)
    process.stdout = open(read, errors="replace")
    return process


def run(
    *words: str | Path,
    timeout: float,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run a module or a script until it ends, and return its exit code and what it printed.

    timeout: in seconds.  wrapper: words before the command; with them, it is no fork.  words,
    environment, cwd: see ForkedProcess.
    Raises: subprocess.TimeoutExpired with what it printed on stdout, after it and
    what it had started were killed.
    """
    command = list(map(str, words))
    if wrapper or COLD in os.environ:
        module = [] if command[0].endswith(".py") else ["-m"]
        return subprocess.run(
            [*wrapper, sys.executable, *module, *command],
            cwd=cwd,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = ForkedProcess(
            command, stdout.fileno(), stderr.fileno(), environment=environment, cwd=cwd
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            stdout.seek(0)
            raise subprocess.TimeoutExpired(command, timeout, stdout.read()) from None
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())


@cache
def _parent(imports: Sequence[str]) -> socket.socket:
    """Start the process that imports and then forks, and return the socket for requests. It ends
    when that is closed, with this one at the latest.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        words = ["tests.support.forked", str(theirs.fileno()), *imports]
        command = [sys.executable, "-m", *words]
        # A fork has none of the threads that numpy and torch would start.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])

    def end() -> None:
        # A child that a test has forked may have the socket open.
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        process.wait(timeout=10)

    atexit.register(end)
    return ours


def _fork_processes(requests: socket.socket) -> None:
    """Fork a process for each request, and say when it has ended, until the socket is closed. In
    such a process, returns when its own work is done.
    """
    answering: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for ready in select.select([requests, woken], [], [])[0]:
            if ready is woken:
                os.read(woken, 4096)
                continue
            size, descriptors, _, _ = socket.recv_fds(requests, 4, 3)
            if not size:
                # The tests have ended, and nobody else would end what they started.
                for pid in answering:
                    os.kill(pid, signal.SIGKILL)
                return
            message = b""
            while len(message) < int.from_bytes(size, "big"):
                message += requests.recv(1 << 20)
            pid = os.fork()
            if not pid:
                for inherited in (requests, *answering.values()):
                    inherited.detach()
                _do_work(json.loads(message), *descriptors[:2])
                return
            answers = socket.socket(fileno=descriptors[2])
            answers.sendall(f"{pid}\n".encode())
            answering[pid] = answers
            for descriptor in descriptors[:2]:
                os.close(descriptor)
        while answering:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with answering.pop(pid) as answers, suppress(BrokenPipeError):
                answers.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _do_work(request: dict[str, Any], stdout: int, stderr: int) -> None:
    """Become what the request describes, do its work, and return or raise as it does."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(descriptor) > 2:
                os.close(int(descriptor))
    os.environ.clear()
    os.environ.update(request["environment"])
    set_timers(request["timers"])
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    if sys.argv[0].endswith(".py"):
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Before an import starts threads, which inherit it, as the server does.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as opened:
        _fork_processes(opened)
