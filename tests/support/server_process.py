"""Processes of `python -m server`, forked from one that has imported the server already.

The imports take half a second of processor time, and the tests start a server hundreds of times.
What a server does after its imports is the same: it has its own process, arguments and environment.
With TOKENFEED_TEST_COLD_SERVERS in the environment, each is started as a user starts it.

Run: python -m tests.support.server_process SOCKET
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.timers import set_timers

ROOT = Path(__file__).parents[2]
COLD = "TOKENFEED_TEST_COLD_SERVERS"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ForkedServer:
    """A server, with the methods of subprocess.Popen.

    pid: of the server.  stdout: what it prints.  returncode: None until it is known to have ended;
    then its exit code, or minus the signal that ended it.
    """

    def __init__(self, arguments: Sequence[str], stderr: int, timers: Mapping[str, float]) -> None:
        """Start a server.  stderr: a descriptor to log to.  timers: see tests.support.timers."""
        request = {"arguments": list(arguments), "timers": timers, "environment": dict(os.environ)}
        read, write = os.pipe()
        ours, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(_parent(), [len(message).to_bytes(4, "big")], [
                write, stderr, theirs.fileno(),
            ])  # fmt: skip
            _parent().sendall(message)
        os.close(write)
        self.stdout = open(read, errors="replace")
        self._answers = ours.makefile()
        self._socket = ours
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code if it has ended, else None."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code.  Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("server", timeout or 0.0)
            self.returncode = int(self._answers.readline())
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


def start_server(
    arguments: Sequence[str],
    stderr: int,
    wrapper: Sequence[str] = (),
    timers: Mapping[str, float] | None = None,
) -> ForkedServer | subprocess.Popen[str]:
    """Start `python -m server`.

    arguments: those of the server.  stderr: a descriptor to log to.  wrapper: words before the
    command; with them, it is no fork.  timers: see tests.support.timers.
    """
    if not wrapper and COLD not in os.environ:
        return ForkedServer(arguments, stderr, timers or {})
    module = ["tests.support.timers", json.dumps(timers)] if timers else ["server"]
    command = [*wrapper, sys.executable, "-m", *module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)


@cache
def _parent() -> socket.socket:
    """Start the process that servers are forked from, and return the socket for requests. It ends
    when the socket is closed, with this process at the latest.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.support.server_process", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        process.wait(timeout=10)

    atexit.register(end)
    return ours


def _fork_servers(requests: socket.socket) -> None:
    """Fork a server for each request, and say when it has ended, until the socket is closed."""
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
                return
            message = b""
            while len(message) < int.from_bytes(size, "big"):
                message += requests.recv(1 << 20)
            pid = os.fork()
            if not pid:
                _become_server(json.loads(message), *descriptors[:2])
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


def _become_server(request: dict[str, object], stdout: int, stderr: int) -> None:
    """Be what `python -m server` is once it has imported the server. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if int(descriptor) > 2:
                    os.close(int(descriptor))
        os.environ.clear()
        os.environ.update(request["environment"])
        set_timers(request["timers"])
        sys.argv = ["server", *request["arguments"]]
        runpy.run_module("server", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    # As the server does, before an import starts threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    importlib.import_module("server.cli.serve")
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as opened:
        _fork_servers(opened)
