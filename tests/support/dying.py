"""A process that kills itself at its N-th call of a function of `os`, for tests of what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

HALF_WRITTEN = {"write": 1, "pwrite": 1}
"""Calls that first write half of their content, and which argument that is."""


def die_at(call: str, number: int, calls: Sequence[str]) -> dict[str, int]:
    """Count the calls of some functions from now on; the number-th one of `call` does not return.

    Returns: the counts, which go on.
    """
    counts = dict.fromkeys(calls, 0)

    def counted(name: str) -> Callable[..., Any]:
        right = getattr(os, name)

        def wrapped(*arguments: Any) -> Any:
            counts[name] += 1
            if name == call and counts[name] == number:
                if (place := HALF_WRITTEN.get(name)) is not None:
                    content = memoryview(arguments[place])
                    half = content[: len(content) // 2 + 1]
                    right(*arguments[:place], half, *arguments[place + 1 :])
                os.kill(os.getpid(), signal.SIGKILL)
            return right(*arguments)

        return wrapped

    for name in calls:
        setattr(os, name, counted(name))
    return counts
