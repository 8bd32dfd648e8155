"""Runs in a trainer's container: takes batches in step with the clock and says what each one was.

    python reader.py [OPTIONS] SECONDS_PER_STEP HOST:PORT [HOST:PORT ...]

prints for each batch its number, the SHA-256 of its rows as uint16, and how often streams broke and
were taken up again, until it is ended. The ranks of a job take their steps together, and batches
are numbered in the order of their samples. SIGUSR1 ends the pauses between steps. SIGTERM ends it
after a step, and then it prints the word `state` and the state of the job as JSON.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from contextlib import ExitStack

import numpy as np

import client

BATCH_SIZE, CONTEXT_LENGTH, SEED = 4, 256, 7
BATCH_BYTES = BATCH_SIZE * (CONTEXT_LENGTH + 1) * 2


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--numpy", action="store_true", help="without torch, which takes seconds")
    parser.add_argument("--order", default="random")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epoch", action="store_true", help="end after epoch 0")
    parser.add_argument("--state", type=json.loads, help="resume there")
    parser.add_argument("seconds", type=float)
    parser.add_argument("targets", nargs="+")
    return parser.parse_args(words)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.numpy:
        batches_class = client.NumpyBatches
    else:
        import torch

        torch.set_num_threads(1)
        batches_class = client.RemoteBatches
    signals = set()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.add(number))
    with ExitStack() as opened:
        # Little is received ahead, so that a fault hits what is needed next.
        feeds = [
            opened.enter_context(
                batches_class(
                    options.targets,
                    BATCH_SIZE,
                    CONTEXT_LENGTH,
                    order=options.order,
                    seed=SEED,
                    rank=rank,
                    world_size=options.ranks,
                    prefetch_bytes=8 * BATCH_BYTES,
                    timeouts=client.Timeouts(reconnect_seconds=60.0),
                )
            )
            for rank in range(options.ranks)
        ]
        if options.state is not None:
            for feed in feeds:
                feed.load_state_dict(options.state)
        streams = [feed.epoch(0) if options.epoch else feed for feed in feeds]
        number = feeds[0].position.samples // BATCH_SIZE
        for batches in zip(*streams, strict=True):
            reconnects = sum(feed.stats().reconnects for feed in feeds)
            for x, y in batches:
                rows = np.concatenate([x, y[:, -1:]], axis=1).astype("<u2")
                print(number, hashlib.sha256(rows.tobytes()).hexdigest(), reconnects)
                number += 1
            sys.stdout.flush()
            if signal.SIGTERM in signals:
                print("state", json.dumps(feeds[0].state_dict()))
                return
            if signal.SIGUSR1 not in signals:
                time.sleep(options.seconds)


if __name__ == "__main__":
    main()
