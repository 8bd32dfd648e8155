"""How long a feed waits for its servers. Numbers only, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass

from ..validation import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait: for one server, and until some server answers.

    read_seconds: how long a server may send nothing of what was asked for before the next one is
    asked; in (0, a year].
    reconnect_seconds: how long to wait while no server answers, before Unreachable is raised; in
    [0, a year], or None, which waits for ever. It runs only while somebody waits for a batch.
    Raises: InvalidRequest, naming the field.
    """

    read_seconds: float = 3.0
    # Below the 600 s after which NCCL's watchdog ends the ranks that wait for this one: what is
    # seen then has to be the error that says why.
    reconnect_seconds: float | None = 480.0

    def __post_init__(self) -> None:
        """Check the ranges.  Raises: InvalidRequest."""
        seconds("read_seconds", self.read_seconds, zero=False)
        if self.reconnect_seconds is not None:
            seconds("reconnect_seconds", self.reconnect_seconds, zero=True)


DEFAULT_TIMEOUTS = Timeouts()
