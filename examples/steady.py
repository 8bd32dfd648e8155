"""Takes batches at a steady pace, as a trainer does, and says once a second what has arrived.

    python examples/steady.py HOST:PORT [HOST:PORT ...]

Of several servers any may be stopped, killed or cut off meanwhile. It ends with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

from tokenfeed import RemoteBatches
from tokenfeed.errors import TokenfeedError

TOKENS_SHOWN = 12


def main() -> int:
    """Iterate until it is told to stop.  Returns: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--dataset", help="where they serve several")
    parser.add_argument("--steps-per-second", type=float, default=20.0)
    parser.add_argument(
        "--tokenizer", type=Path, help="to show text instead of tokens, where there is this file"
    )
    arguments = parser.parse_args()
    # Ends as by Ctrl-C: the first process of a container is not ended by a signal that it ignores.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    path = arguments.tokenizer
    tokenizer = Tokenizer.from_file(str(path)) if path and path.exists() else None
    feed = RemoteBatches(
        arguments.targets,
        arguments.batch_size,
        arguments.context_length,
        dataset=arguments.dataset,
        order="shuffled",
    )
    say_next = 0.0
    try:
        for step, (x, _) in enumerate(feed):
            if time.monotonic() >= say_next:
                stats, first = feed.stats(), x[0, :TOKENS_SHOWN].tolist()
                print(
                    f"step {step}: {stats.tokens:,} tokens, waited {stats.wait_seconds:.2f} s, "
                    f"reconnected {stats.reconnects} times; "
                    f"{(tokenizer.decode(first) if tokenizer else first)!r}",
                    flush=True,
                )
                say_next = time.monotonic() + 1
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
