"""What processes hold over hours: memory, descriptors and threads, their slopes and a plot."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.faults.lab import Process

_KINDS = ("memory, MiB", "descriptors", "threads")
_WIDTH, _HEIGHT = 700, 160
_COLOURS = ("#1f6feb", "#d1242f")
_WARM_UP = 0.2
"""The share of the run that a slope leaves out: a heap grows while its first batches come."""


class Slope(NamedTuple):
    """Growth an hour, with its standard error."""

    per_hour: float
    error: float


class Usage:
    """Samples of processes that live as long as the run, taken by a thread of its own."""

    def __init__(self, pids: Mapping[str, int], every_seconds: float) -> None:
        """Begin.  pids: of each process, by its name."""
        self._pids, self._every = pids, every_seconds
        self._over = threading.Event()
        self._began = time.monotonic()
        self._hours: list[float] = []
        self._samples: list[list[tuple[int, int, int]]] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _take(self) -> None:
        processes = [Process(pid) for pid in self._pids.values()]
        while not self._over.wait(self._every):
            self._samples.append([process.all() for process in processes])
            self._hours.append((time.monotonic() - self._began) / 3600)

    def _column(self, process: int, kind: int) -> np.ndarray:
        found = np.array([sample[process][kind] for sample in self._samples], float)
        return found / (1 << 20) if kind == 0 else found

    def slopes(self) -> dict[str, Slope]:
        """Return the slope of each kind and process, behind the warm-up.

        The error of a least-squares line assumes samples that do not depend on each other; these
        do, so that the error is what it would be with one sample a minute at most.
        """
        first = int(_WARM_UP * len(self._hours))
        hours = np.array(self._hours[first:])
        found = {}
        for number, name in enumerate(self._pids):
            for kind, unit in enumerate(_KINDS):
                values = self._column(number, kind)[first:]
                found[f"{name}: {unit}"] = _slope(hours, values)
        return found

    def plot(self, path: Path) -> None:
        """Write what was sampled as an SVG: a line for each process, one picture for each kind."""
        parts = []
        for kind, unit in enumerate(_KINDS):
            columns = [self._column(number, kind) for number in range(len(self._pids))]
            most = max(float(column.max(initial=1.0)) for column in columns)
            top = kind * (_HEIGHT + 60) + 40
            parts.append(f'<text x="60" y="{top - 12}">{unit}: 0 to {most:,.0f}</text>')
            parts.append(f'<path d="M60 {top} v{_HEIGHT} h{_WIDTH}" stroke="gray" fill="none"/>')
            for column, name, colour in zip(columns, self._pids, _COLOURS, strict=False):
                xs = 60 + _WIDTH * np.array(self._hours) / self._hours[-1]
                ys = top + _HEIGHT * (1 - column / most)
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
                parts.append(f'<polyline points="{points}" stroke="{colour}" fill="none"/>')
                at = int(ys[-1])
                parts.append(f'<text x="{70 + _WIDTH}" y="{at}" fill="{colour}">{name}</text>')
        hours = f"0 to {self._hours[-1]:.2f} hours"
        height = len(_KINDS) * (_HEIGHT + 60) + 40
        parts.append(f'<text x="60" y="{height - 20}">{hours}</text>')
        size = f'width="{_WIDTH + 160}" height="{height}" font-family="sans-serif" font-size="13"'
        begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
        path.write_text("\n".join([begin, *parts, "</svg>\n"]))


def _slope(hours: np.ndarray, values: Sequence[float] | np.ndarray) -> Slope:
    minutes = (60 * hours).astype(int)
    times = np.array([hours[minutes == one].mean() for one in np.unique(minutes)])
    means = np.array([np.mean(np.asarray(values)[minutes == one]) for one in np.unique(minutes)])
    if times.size < 3:
        return Slope(float("nan"), float("nan"))
    (slope, _), covariance = np.polyfit(times, means, 1, cov="unscaled")
    line = np.polyval(np.polyfit(times, means, 1), times)
    variance = ((means - line) ** 2).sum() / (times.size - 2)
    return Slope(float(slope), float(np.sqrt(variance * covariance[0, 0])))
