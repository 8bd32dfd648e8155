"""Runs one contender: python -m benchmarks.peers.run NAME serve|take SOURCE [SECONDS]

`take` prints a line of JSON: million tokens/s in the first second and after it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator

FIRST_SECONDS = 1.0


def main() -> None:
    """Serve, or measure."""
    name, verb, source, *seconds = sys.argv[1:]
    module, _, setting = name.partition(":")
    peer = importlib.import_module(f"benchmarks.peers.{module}")
    if verb == "serve":
        peer.serve(source)
    else:
        batches = peer.take(source, setting) if setting else peer.take(source)
        first, after = measure(batches, float(seconds[0]))
        print(json.dumps({"first": first, "after": after}), flush=True)


def measure(batches: Iterator[int], seconds: float) -> tuple[float, float]:
    """Return million tokens/s in the first second from the first batch on, and in the seconds after
    it.
    """
    next(batches)
    begun = time.perf_counter()
    taken = first_taken = 0
    first_end = None
    for tokens in batches:
        taken += tokens
        now = time.perf_counter() - begun
        if first_end is None and now >= FIRST_SECONDS:
            first_end, first_taken = now, taken
        if now >= FIRST_SECONDS + seconds:
            break
    assert first_end is not None, "the contender ended within its first second"
    return first_taken / first_end / 1e6, (taken - first_taken) / (now - first_end) / 1e6


if __name__ == "__main__":
    main()
