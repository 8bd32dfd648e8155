"""Prints what RemoteBatches delivers: tokens per second, the tokens of all the run, and the
processor time of this process for each of those that were counted, in seconds. Not a benchmark
itself.

benchmarks.round_trip runs this file with the client of another checkout in PYTHONPATH, so it
imports nothing of this one.
"""

from __future__ import annotations

import sys
import time

from client import RemoteBatches

BATCH_SIZE = 32
CONTEXT_LENGTH = 2048
BATCH_TOKENS = BATCH_SIZE * CONTEXT_LENGTH


def main() -> None:
    """Take batches from ADDRESS for SETTLE seconds, and then count for SECONDS; without the tokens
    of a LIST, if there is one.
    """
    address, settle, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH) as feed:
        for list_hash in sys.argv[4:]:
            feed.redact(list_hash)
        settled = BATCH_TOKENS * take_until(feed, time.perf_counter() + settle)
        begun, used = time.perf_counter(), time.process_time()
        count = BATCH_TOKENS * take_until(feed, begun + seconds)
        used, end = time.process_time() - used, time.perf_counter()
        print(count / (end - begun), settled + count, used / count)


def take_until(feed: RemoteBatches, end: float) -> int:
    """Take batches until one arrives at or after end; return their number."""
    for count, _ in enumerate(feed, 1):
        if time.perf_counter() >= end:
            return count
    raise SystemExit("the stream has ended")


if __name__ == "__main__":
    main()
