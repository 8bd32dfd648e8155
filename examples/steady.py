"""Takes batches at a steady rate, like a trainer, and prints one line per second.

    python examples/steady.py HOST:PORT [HOST:PORT ...]

Stop, kill or disconnect any of several servers meanwhile. End it with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tokenfeed import RemoteBatches
from tokenfeed.commands.decoding import BYTES, decoder
from tokenfeed.errors import TokenfeedError

TOKENS_SHOWN = 12


def main() -> int:
    """Iterate until a signal.  Returns: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--dataset", help="dataset name; optional if the servers have only one")
    parser.add_argument("--steps-per-second", type=float, default=20.0)
    parser.add_argument(
        "--tokenizer",
        default="",
        help='"bytes", or a tokenizer.json: print text instead of tokens, if the file exists',
    )
    arguments = parser.parse_args()
    # Handled like Ctrl-C: a signal without a handler does not end the first process of a container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    feed = RemoteBatches(
        arguments.targets,
        arguments.batch_size,
        arguments.context_length,
        dataset=arguments.dataset,
        order="shuffled",
    )
    path, print_next = arguments.tokenizer, 0.0
    try:
        decode = decoder(path) if path == BYTES or Path(path).is_file() else list
        for step, (x, _) in enumerate(feed):
            if time.monotonic() >= print_next:
                stats, first = feed.stats(), x[0, :TOKENS_SHOWN].tolist()
                print(
                    f"step {step}: {stats.tokens:,} tokens, waited {stats.wait_seconds:.2f} s, "
                    f"reconnected {stats.reconnects} times; {decode(first)!r}",
                    flush=True,
                )
                print_next = time.monotonic() + 1
            time.sleep(1 / arguments.steps_per_second)
    except TokenfeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        feed.close()
    print(f"took {feed.stats().batches:,} batches", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
