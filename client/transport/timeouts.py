"""The timeouts of a feed: numbers, checked when they are created."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.arguments import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts for one server, and for all servers together.

    read_seconds: how long a server may send nothing of what was requested before the client fails
    over to the next one; in (0, a year].
    reconnect_seconds: how long no server may answer before Unreachable is raised; in [0, a year],
    or None for no limit. It runs only while the trainer waits for a batch, and not while a server
    makes the rows that it waits for and its progress grows.
    Raises: InvalidRequest, naming the field.
    """

    read_seconds: float = 3.0
    # Below the 600 s after which NCCL's watchdog ends the ranks that wait for this one: the error
    # with the reason has to come first.
    reconnect_seconds: float | None = 480.0

    def __post_init__(self) -> None:
        """Check the ranges.  Raises: InvalidRequest."""
        seconds("read_seconds", self.read_seconds, zero=False)
        if self.reconnect_seconds is not None:
            seconds("reconnect_seconds", self.reconnect_seconds, zero=True)


DEFAULT_TIMEOUTS = Timeouts()
