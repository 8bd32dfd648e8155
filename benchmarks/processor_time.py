"""Processor time of processes and of the machine, from /proc. This is not a benchmark itself."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; not idle and iowait


@dataclass(frozen=True, slots=True)
class _Process:
    """ticks: of its own.  ended_ticks: of the children that it has waited for, and of theirs."""

    parent: int
    ticks: int
    ended_ticks: int


def tree_seconds(pid: int) -> float:
    """Return the processor time that a process and all its descendants have used so far.

    In seconds, in steps of 10 ms. Descendants that have ended count, if they were waited for.
    """
    processes = _processes()
    return processes[pid].ticks / _TICKS_PER_SECOND + _started_seconds(processes, pid, ())


def started_seconds(pid: int, without: Collection[int] = ()) -> float:
    """Return the same without the process itself.

    without: descendants that do not count, nor do theirs.
    """
    return _started_seconds(_processes(), pid, without)


def busy_share(seconds: float) -> float:
    """Return the share of the machine's processor time that is used during the next seconds.

    The caller sleeps meanwhile. Time that a hypervisor gave to other machines counts as used.
    """
    busy, total = _machine_ticks()
    time.sleep(seconds)
    busy_later, total_later = _machine_ticks()
    return (busy_later - busy) / max(1, total_later - total)


def _started_seconds(processes: dict[int, _Process], root: int, without: Collection[int]) -> float:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    ticks = processes[root].ended_ticks
    left = list(children.get(root, ()))
    while left:
        pid = left.pop()
        if pid not in without:
            ticks += processes[pid].ticks + processes[pid].ended_ticks
            left += children.get(pid, ())
    return ticks / _TICKS_PER_SECOND


def _processes() -> dict[int, _Process]:
    """Return every process of this machine, by its id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        # The name is in parentheses, and may contain any character.
        fields = text.rpartition(")")[2].split()
        user, system, ended_user, ended_system = map(int, fields[11:15])
        found[int(folder.name)] = _Process(int(fields[1]), user + system, ended_user + ended_system)
    return found


def _machine_ticks() -> tuple[int, int]:
    """Return the used ticks of all processors, and all ticks."""
    first_line = Path("/proc/stat").read_text().partition("\n")[0]
    # The two last fields, of guests, are parts of the first two.
    fields = [int(field) for field in first_line.split()[1:9]]
    return sum(fields[index] for index in _BUSY_FIELDS), sum(fields)
