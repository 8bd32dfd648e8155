"""Progress of an ingest: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_TERMINAL_SECONDS = 0.5
_LOG_SECONDS = 10.0


class Progress:
    """Shows how much is done, the speed, and the time left.

    total_bytes: of all sources.  engine: what encodes.
    """

    def __init__(self, total_bytes: int, engine: str, stream: TextIO | None = None) -> None:
        """stream: a terminal, or a log; by default stderr."""
        self.total_bytes = total_bytes
        self.engine = engine
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._begun = self._shown_at = time.monotonic()
        self._first: tuple[int, int] | None = None
        self._last = (0, 0)

    def show(self, done_bytes: int, tokens: int) -> None:
        """Show progress, if a line is due.  done_bytes: of the sources.  tokens: of these bytes."""
        now = time.monotonic()
        self._last = done_bytes, tokens
        if self._first is None:
            # Work before a kill does not count for the speed of this run.
            self._first = done_bytes, tokens
        if now - self._shown_at < (_TERMINAL_SECONDS if self._is_terminal else _LOG_SECONDS):
            return
        self._shown_at = now
        line = self._line(done_bytes, tokens, now - self._begun)
        self._stream.write(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")
        self._stream.flush()

    @property
    def tokens(self) -> int:
        """Number of tokens of this run."""
        return self._last[1] - self._first[1] if self._first else 0

    def end(self) -> None:
        """Clear the live line."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self, done_bytes: int, tokens: int, seconds: float) -> str:
        assert self._first is not None
        first_bytes, first_tokens = self._first
        share = done_bytes / self.total_bytes if self.total_bytes else 1.0
        megabytes = (done_bytes - first_bytes) / seconds / 1e6
        line = f"{share:.1%}  {tokens:,} tokens  {(tokens - first_tokens) / seconds:,.0f} tokens/s"
        line += f"  {megabytes:,.1f} MB/s by {self.engine}"
        if done_bytes > first_bytes:
            left = (self.total_bytes - done_bytes) * seconds / (done_bytes - first_bytes)
            line += f"  {duration(left)} left"
        return line


def duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds: "1:02:03", "2:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
