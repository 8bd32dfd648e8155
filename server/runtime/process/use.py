"""What this process takes of its machine: threads and memory, as the kernel counts them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

STARTED = time.time()
"""Unix time at which this module was imported, which is when the process started."""
_STATUS = Path("/proc/self/status")


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


def _number(text: str | None) -> int:
    return int(text.split()[0]) if text else 0
