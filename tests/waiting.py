"""Waiting for a state, bounded: no test counts tries, and none relies on how fast a machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.01


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Whether a condition comes true, at once or within so many seconds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return holds
