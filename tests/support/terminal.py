"""A command in a terminal: what is on its screen, and what the terminal is like afterwards."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.conftest import ROOT

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with a command in it.  written: all that it has written."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.written = ""
        # A read may end within a sign.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def screens(self) -> list[list[str]]:
        """The lines of each screen that was drawn, without their styles."""
        return [
            [_ESCAPES.sub("", line).rstrip("\r") for line in drawn.split("\x1b[J")[0].split("\n")]
            for drawn in self.written.split("\x1b[H")[1:]
            if "\x1b[J" in drawn
        ]

    def settings(self) -> list[Any]:
        """What termios says of it."""
        return termios.tcgetattr(self._descriptor)

    def resize(self, columns: int, lines: int) -> None:
        """Change its size."""
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._descriptor, keys.encode())

    def read_until(self, condition: Callable[[], bool], seconds: float = 15.0) -> bool:
        """Read what is written until a condition holds; say whether it does in time."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return condition()
            if select.select([self._descriptor], [], [], min(left, 0.05))[0]:
                try:
                    self.written += self._decoder.decode(os.read(self._descriptor, 1 << 16))
                except OSError:  # the command has ended
                    return condition()
        return True

    def shows(self, text: str) -> bool:
        """Wait until the latest screen has a text; say whether it has."""
        return self.read_until(
            lambda: bool(self.screens) and any(text in line for line in self.screens[-1])
        )

    def ended(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        assert self.read_until(lambda: self.process.poll() is not None)
        self.read_until(lambda: False, 0.2)
        return self.process.wait()


@contextmanager
def terminal(
    command: Sequence[str], environment: dict[str, str], columns: int = 120, lines: int = 30
) -> Iterator[Terminal]:
    """Run a Python command in a terminal for the duration of the with block."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    found = Terminal(ours, process)
    found.resize(columns, lines)
    try:
        yield found
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        os.close(ours)
        os.close(theirs)
