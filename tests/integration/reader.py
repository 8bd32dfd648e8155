"""Runs in a trainer's container: takes batches in step with the clock and says what each one was.

    python reader.py SECONDS_PER_BATCH HOST:PORT [HOST:PORT ...]

prints for each batch its step, the SHA-256 of its rows as uint16, and how often a stream broke and
was taken up again, until it is ended.
"""

import hashlib
import sys
import time

import torch

from client import RemoteBatches, Timeouts

BATCH_SIZE, CONTEXT_LENGTH, SEED = 4, 256, 7
BATCH_BYTES = BATCH_SIZE * (CONTEXT_LENGTH + 1) * 2

if __name__ == "__main__":
    seconds, targets = float(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    # Little is received ahead, so that a fault hits what is needed next.
    with RemoteBatches(
        targets,
        BATCH_SIZE,
        CONTEXT_LENGTH,
        seed=SEED,
        prefetch_bytes=8 * BATCH_BYTES,
        timeouts=Timeouts(reconnect_seconds=60.0),
    ) as feed:
        for step, (x, y) in enumerate(feed):
            rows = torch.cat([x, y[:, -1:]], dim=1).numpy().astype("<u2")
            digest = hashlib.sha256(rows.tobytes()).hexdigest()
            print(step, digest, feed.stats().reconnects, flush=True)
            time.sleep(seconds)
