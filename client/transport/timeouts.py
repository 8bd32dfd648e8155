"""The timeouts of a feed: numbers, checked when they are created."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.arguments import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a feed waits for one server, and for all servers together.

    read_seconds: how long the client waits for requested rows from one server before it fails over
    to the next server; in (0, a year].
    reconnect_seconds: how long the feed tries all servers before it raises Unreachable; in [0, a
    year], or None for no limit. reconnect_seconds runs only while the trainer waits for a batch,
    and not while a server makes rows of documents and reports progress.
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
