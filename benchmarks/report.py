"""The report of every benchmark: machine, date, commit, load, and a table of medians and ratios."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.processor_time import busy_share


def print_table(title: str, unit: str, rounds: dict[str, list[float]]) -> None:
    """Print a row for each contender: median, lowest and highest round, ratio to the first one.

    rounds: the figures of each contender, one per round, measured alternately.
    """
    print(heading(title))
    width = max(map(len, rounds))
    first = statistics.median(next(iter(rounds.values())))
    print(f"{'':{width}}  {f'median {unit}':>14} {'lowest':>9} {'highest':>9} {'ratio':>6}")
    for name, figures in rounds.items():
        median = statistics.median(figures)
        ratio = median / first if first else math.nan
        line = f"{median:14.1f} {min(figures):9.1f} {max(figures):9.1f} {ratio:6.2f}"
        print(f"{name:{width}}  {line}")


def print_columns(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> None:
    """Print a row for each contender, with a figure in each column."""
    print(heading(title))
    width = max(map(len, rows))
    print(f"{'':{width}}  {' '.join(f'{column:>9}' for column in columns)}")
    for name, figures in rows.items():
        print(f"{name:{width}}  {' '.join(f'{figure:9.2f}' for figure in figures)}")


def print_load(when: str) -> None:
    """Print how busy the machine is without this benchmark, which must be idle meanwhile.

    The load averages, of 1, 5 and 15 minutes, include what the benchmark itself has done.
    """
    averages = " ".join(f"{average:.2f}" for average in os.getloadavg())
    share = 100 * busy_share(1.0)
    print(f"{when}: load average {averages}; others use {share:.0f} % of the processors")


def heading(title: str) -> str:
    """Return the line above a table."""
    return f"{title}; {machine()}, {datetime.date.today()}, commit {commit()}"


def machine() -> str:
    """Return a description of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit checked out, short, with a + if files differ; "?" outside a checkout."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "?"
