"""tokenfeed bench: how fast batches arrive on this machine, and the time spent waiting."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from tokenfeed.client.runtime.arguments import seconds
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest

from . import WAIT_SECONDS

if TYPE_CHECKING:
    from tokenfeed.client.batches.remote import RemoteBatches

_LINE_SECONDS = 0.5


def run_bench(arguments: argparse.Namespace) -> None:
    """Print how fast batches arrive."""
    duration_seconds = seconds("seconds", arguments.seconds, zero=False)
    try:
        from tokenfeed.client.batches.remote import RemoteBatches
    except ImportError as error:
        raise InvalidRequest("bench", missing(error, "torch")) from None
    except OSError as error:
        raise InvalidRequest("bench", f"torch cannot be imported: {error}") from error
    with RemoteBatches(
        arguments.target,
        arguments.batch_size,
        arguments.context_length,
        seed=arguments.seed,
        dataset=arguments.dataset,
        order=arguments.order,
        long=arguments.long,
        group_tokens=arguments.group_tokens,
        device=arguments.device,
        timeouts=Timeouts(reconnect_seconds=WAIT_SECONDS),
    ) as feed:
        print(measure(feed, duration_seconds))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result, from the first batch on.  wait_seconds: the part of seconds spent waiting."""

    batches: int
    tokens: int
    seconds: float
    wait_seconds: float
    first_batch_seconds: float

    def __str__(self) -> str:
        """Return one readable line."""
        rate = self.tokens / self.seconds / 1e6 if self.seconds else 0.0
        waited = 100 * self.wait_seconds / self.seconds if self.seconds else 0.0
        return (
            f"{self.batches:,} batches  {rate:.1f} million tokens/s  "
            f"{waited:.0f} % of the time waiting for data  "
            f"first batch after {1e3 * self.first_batch_seconds:.0f} ms"
        )


def measure(
    feed: RemoteBatches, duration_seconds: float, progress: TextIO = sys.stderr
) -> Measurement:
    """Take batches as fast as they arrive, for this many seconds after the first one.

    progress: if it is a terminal, one line on it is updated twice a second; else nothing is
    written.
    """
    begun = time.monotonic()
    next(feed, None)
    first, before = time.monotonic(), feed.stats()
    shown = now = first

    def measured() -> Measurement:
        stats = feed.stats()
        return Measurement(
            stats.batches - before.batches,
            stats.tokens - before.tokens,
            now - first,
            stats.wait_seconds - before.wait_seconds,
            first - begun,
        )

    for _ in feed:
        now = time.monotonic()
        if now - shown >= _LINE_SECONDS and progress.isatty():
            shown = now
            print(f"\r{measured()}", end="", file=progress, flush=True)
        if now - first >= duration_seconds:
            break
    if shown != first:
        print("\r\033[K", end="", file=progress, flush=True)
    return measured()
