"""A terminal that is drawn in place, and left as it was found: after the end, after an error, after
Ctrl-C, SIGTERM, and while the command is stopped by Ctrl-Z.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from tokenfeed.commands.status.states import Level

from .text import Line, cut

# The alternate screen, without a cursor and without the wrapping of long lines.
_ENTER = "\033[?1049h\033[?25l\033[?7l"
_LEAVE = "\033[?7h\033[?25h\033[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\033[H", "\033[K", "\033[J"
_PLAIN = "\033[0m"
_STYLES = {Level.PROBLEM: "\033[1;31m", Level.WARNING: "\033[33m", Level.NOTICE: ""}
_HEADING = "\033[1m"
_DEFAULT_SIZE = os.terminal_size((80, 24))


class Screen:
    """The terminal of this process, for the duration of a with block in its main thread."""

    def __init__(self) -> None:
        """Prepare; the terminal is not touched yet."""
        self._keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        """Take the terminal."""
        for number, handler in (
            (signal.SIGTERM, _exit),
            (signal.SIGHUP, _exit),
            (signal.SIGTSTP, self._stop),
        ):
            self._handlers[number] = signal.signal(number, handler)
        try:
            self._take()
        except BaseException:  # a Ctrl-C, for which __exit__ would not be called
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def size(self) -> os.terminal_size:
        """Return columns and lines, as they are now."""
        with suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno())
            if found.columns > 0 and found.lines > 0:
                return found
        return _DEFAULT_SIZE

    def draw(self, lines: Sequence[Line]) -> None:
        """Show some lines, and nothing else; those that do not fit are cut."""
        width, height = self.size
        shown = []
        for line in lines[:height]:
            style = _HEADING if line.is_heading else _STYLES[line.level]
            end = _PLAIN if style else ""
            shown.append(f"{style}{cut(line.text, width)}{end}{_END_OF_LINE}")
        self._write(_HOME + "\r\n".join(shown) + _END_OF_SCREEN)

    def wait(self, seconds: float) -> bool:
        """Wait this long, or until a key is pressed.  Returns: whether it is that of the end."""
        if self._keyboard < 0:
            time.sleep(seconds)
            return False
        if not select.select([self._keyboard], [], [], seconds)[0]:
            return False
        pressed = os.read(self._keyboard, 64)
        if not pressed:  # the terminal is gone
            self._keyboard = -1
        return pressed in (b"q", b"Q")

    def _take(self) -> None:
        if self._keyboard >= 0:
            self._before = termios.tcgetattr(self._keyboard)
            changed = termios.tcgetattr(self._keyboard)
            # What is typed is neither shown nor held back until the end of a line.
            changed[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, changed)
        self._write(_ENTER)

    def _give_back(self) -> None:
        # The terminal may be gone, and nothing is left to do then.
        with suppress(OSError):
            self._write(_LEAVE)
        if self._before:
            with suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stop as Ctrl-Z asks for, with the terminal as it was; go on after SIGCONT."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _write(self, text: str) -> None:
        sys.stdout.write(encodable(text))
        sys.stdout.flush()


def encodable(text: str) -> str:
    """Return text that stdout can encode, with "?" for each sign that it cannot."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
