"""What the streams of a feed count, for its statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What streams count.  wait_seconds: time that the consumer waited for rows.
    reconnects: how often rows arrived again after a break.
    """

    wait_seconds: float = 0.0
    reconnects: int = 0
