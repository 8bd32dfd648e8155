"""How far a long search is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_PROGRESS_AFTER_SECONDS = 1.0
_PROGRESS_SECONDS = 1.0


class Progress:
    """A line on stderr for a search that takes longer than a second."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """stream: by default stderr.  clock: in seconds."""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._shown = self._begun = clock()

    def __enter__(self) -> Progress:
        """Show nothing yet."""
        return self

    def show(self, done: float) -> None:
        """Say how far it is.  done: in [0, 1]."""
        now = self._clock()
        if now - self._begun < _PROGRESS_AFTER_SECONDS or now - self._shown < _PROGRESS_SECONDS:
            return
        self._shown = now
        text = f"looked at {100 * done:.1f} % of the rows"
        is_terminal = self._stream.isatty()
        print(
            f"\r{text}" if is_terminal else text,
            end="" if is_terminal else "\n",
            file=self._stream,
            flush=True,
        )

    def __exit__(self, *_: object) -> None:
        """Remove the line from a terminal."""
        if self._shown != self._begun and self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
