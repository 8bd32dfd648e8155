"""What the streams of a server do, counted frame by frame: for metrics, the status service and the
log. The only place where sent rows are counted; what shows them is in ../monitoring/.

    tracker.py   Activity: every call reports to it
    streams.py   one stream: its rates, who waits for whom, its lines in the log
    counts.py    totals, histograms and rates

A frame of 1 MiB takes a millisecond or so, and counting it a few microseconds.
"""

from __future__ import annotations

from .counts import BOUNDS, RATE_SECONDS, FrameCounts, Histogram, Labels
from .streams import Caller
from .tracker import ENDED_SECONDS, FORGET_SECONDS, STREAMS_KEPT, Activity, CallActivity

__all__ = [
    "BOUNDS",
    "ENDED_SECONDS",
    "FORGET_SECONDS",
    "RATE_SECONDS",
    "STREAMS_KEPT",
    "Activity",
    "CallActivity",
    "Caller",
    "FrameCounts",
    "Histogram",
    "Labels",
]
