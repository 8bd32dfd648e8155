"""The report of every benchmark: machine, date, commit, and a table of medians and ratios."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import subprocess
from pathlib import Path


def print_table(title: str, unit: str, rounds: dict[str, list[float]]) -> None:
    """Print a row for each contender: median, lowest and highest round, ratio to the first one.

    rounds: the figures of each contender, one per round, measured alternately.
    """
    print(f"{title}; {machine()}, {datetime.date.today()}, commit {commit()}")
    width = max(map(len, rounds))
    first = statistics.median(next(iter(rounds.values())))
    print(f"{'':{width}}  {f'median {unit}':>14} {'lowest':>9} {'highest':>9} {'ratio':>6}")
    for name, figures in rounds.items():
        median = statistics.median(figures)
        ratio = median / first if first else math.nan
        line = f"{median:14.1f} {min(figures):9.1f} {max(figures):9.1f} {ratio:6.2f}"
        print(f"{name:{width}}  {line}")


def machine() -> str:
    """Return a description of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def commit() -> str:
    """Return the commit checked out, short, or "?" outside a checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    folder = Path(__file__).parent
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "?"
