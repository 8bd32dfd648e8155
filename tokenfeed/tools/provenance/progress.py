"""How far a long search is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_PROGRESS_AFTER_SECONDS = 1.0
_PROGRESS_SECONDS = 1.0
_LONG_SECONDS = 3600.0


class Progress:
    """A line on stderr for a search that takes longer than a second; and a warning if it takes more
    than an hour, at the rate so far.
    """

    def __init__(
        self,
        samples: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """samples: all that are looked at.  stream: by default stderr.  clock: in seconds."""
        self._samples = samples
        self._has_warned = False
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
        if done > 0:
            self._warn((now - self._begun) * (1 - done) / done)
        text = f"looked at {100 * done:.1f} % of the rows"
        is_terminal = self._stream.isatty()
        print(
            f"\r{text}" if is_terminal else text,
            end="" if is_terminal else "\n",
            file=self._stream,
            flush=True,
        )

    def _warn(self, left_seconds: float) -> None:
        if self._has_warned or left_seconds < _LONG_SECONDS:
            return
        self._has_warned = True
        hours = left_seconds / _LONG_SECONDS
        left = f"{hours / 24:,.0f} days" if hours >= 48 else f"{hours:.1f} hours"
        print(
            f"warning: to look at {self._samples:,} samples takes about {left} at this "
            "rate; Ctrl-C ends it, and an earlier --end-sample takes less",
            file=self._stream,
            flush=True,
        )

    def __exit__(self, *_: object) -> None:
        """Remove the line from a terminal."""
        if self._shown != self._begun and self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
