"""What this process takes of its machine: threads and memory, as the kernel counts them."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .memory_limit import number_of

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
    text = _STATUS.read_text()
    threads, *kilobytes = (number_of(text, name) for name in ("Threads:", "VmRSS:", "RssAnon:"))
    return ProcessUse(threads, *(1024 * each for each in kilobytes))


@cache
def started() -> float:
    """Return the Unix time at which this process started, to a hundredth of a second."""
    # Field 22, in ticks since the machine started; the second field may contain anything.
    ticks = int(_STAT.read_text().rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_seconds
