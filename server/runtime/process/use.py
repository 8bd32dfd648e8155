"""What this process takes of its machine: threads and memory, as the kernel counts them."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/status")
_STAT = Path("/proc/self/stat")


class ProcessUse(NamedTuple):
    """threads.  resident_bytes: memory, with those pages of files that are entered into the page
    table.  anonymous_bytes: memory without files.
    """

    threads: int
    resident_bytes: int
    anonymous_bytes: int


def process_use() -> ProcessUse:
    """Return what this process uses now; 0 for what the kernel does not tell."""
    found = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return ProcessUse(
        _number(found.get("Threads")),
        _number(found.get("VmRSS")) * 1024,
        _number(found.get("RssAnon")) * 1024,
    )


@cache
def started() -> float:
    """Return the Unix time at which this process started, to a hundredth of a second."""
    # Field 22, in ticks since the machine started; the second field may contain anything.
    ticks = int(_STAT.read_text().rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_seconds


def _number(text: str | None) -> int:
    return int(text.split()[0]) if text else 0
