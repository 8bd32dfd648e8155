"""Prints how many tokens per second RemoteBatches delivers. Not a benchmark itself.

benchmarks.round_trip runs this file with the client of another checkout in PYTHONPATH, so it
imports nothing of this one.
"""

from __future__ import annotations

import sys
import time

from client import RemoteBatches

BATCH_SIZE = 32
CONTEXT_LENGTH = 2048


def main() -> None:
    """Take batches from ADDRESS for SETTLE seconds, and then count for SECONDS; without the tokens
    of a LIST, if there is one.
    """
    address, settle, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH) as feed:
        for list_hash in sys.argv[4:]:
            feed.redact(list_hash)
        take_until(feed, time.perf_counter() + settle)
        begun = time.perf_counter()
        count = take_until(feed, begun + seconds)
        print(count * BATCH_SIZE * CONTEXT_LENGTH / (time.perf_counter() - begun))


def take_until(feed: RemoteBatches, end: float) -> int:
    """Take batches until one arrives at or after end; return their number."""
    for count, _ in enumerate(feed, 1):
        if time.perf_counter() >= end:
            return count
    raise SystemExit("the stream has ended")


if __name__ == "__main__":
    main()
