"""Logs what a feed does to TensorBoard, beside the loss.

    python examples/tensorboard_metrics.py --log-dir runs
    tensorboard --logdir runs

It needs the package tensorboard. A run that waits for its data has a high wait_share, an empty
queue, and waits in the upper buckets of the histogram. The trainer itself logs, so a figure of a
step is that of the interval since the last one.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from serving import parser, server_at
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter

from tokenfeed import RemoteBatches
from tokenfeed.client.feed.stats import FeedStats

BATCH_SIZE, CONTEXT_LENGTH = 16, 128
LAST_BOUND_SECONDS = 1000.0
"""TensorBoard wants a bound for the last bucket too."""


class FeedLog:
    """Writes the statistics of a feed: of each interval between two calls of `write`."""

    def __init__(self, writer: SummaryWriter, feed: RemoteBatches, name: str = "feed") -> None:
        """Begin the first interval.  name: of the group of plots."""
        self._writer = writer
        self._feed = feed
        self._name = name
        self._before, self._written_at = feed.stats(), time.perf_counter()

    def write(self, step: int) -> None:
        """Write the figures of the interval that ends now."""
        stats, now = self._feed.stats(), time.perf_counter()
        before, seconds = self._before, now - self._written_at
        figures = {
            "wait_share": (stats.wait_seconds - before.wait_seconds) / seconds,
            "tokens_per_second": (stats.tokens - before.tokens) / seconds,
            "received_bytes_per_second": (stats.token_bytes_received - before.token_bytes_received)
            / seconds,
            "queue_depth_batches": stats.queue_depth_batches,
            "reconnects": stats.reconnects,
            "samples": stats.samples,
        }
        for figure, value in figures.items():
            self._writer.add_scalar(f"{self._name}/{figure}", value, step)
        self._write_waits(stats, before, step)
        self._before, self._written_at = stats, now

    def _write_waits(self, stats: FeedStats, before: FeedStats, step: int) -> None:
        """Write the histogram of the waits of the interval."""
        histogram, earlier = stats.wait_histogram, before.wait_histogram
        up_to = [count - old for count, old in zip(histogram.counts, earlier.counts, strict=True)]
        counts = [after - below for below, after in pairwise([0, *up_to])]
        bounds = [*histogram.bounds_seconds, LAST_BOUND_SECONDS]
        if not any(counts):
            return
        middles = [(below + above) / 2 for below, above in pairwise([0.0, *bounds])]
        self._writer.add_histogram_raw(
            f"{self._name}/wait_seconds",
            min=0.0,
            max=max(bound for bound, count in zip(bounds, counts, strict=True) if count),
            num=sum(counts),
            sum=histogram.sum_seconds - earlier.sum_seconds,
            sum_squares=sum(n * s * s for n, s in zip(counts, middles, strict=True)),
            bucket_limits=bounds,
            bucket_counts=counts,
            global_step=step,
        )


def main() -> None:
    """Train a small model, and log."""
    options = parser(__doc__)
    options.add_argument("--log-dir", default="runs", help="folder of TensorBoard")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    vocab_size = arguments.vocab_size
    model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with (
        server_at(arguments.target) as address,
        RemoteBatches(
            address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            dataset=arguments.dataset,
            order="shuffled",
            num_batches=arguments.steps,
        ) as feed,
        SummaryWriter(arguments.log_dir) as writer,
    ):
        log = FeedLog(writer, feed)
        for step, (x, y) in enumerate(feed, 1):
            optimizer.zero_grad()
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            if step % arguments.log_every == 0:
                writer.add_scalar("loss", loss.item(), step)
                log.write(step)
        print(f"step {step}: loss {loss.item():.3f}, logged to {arguments.log_dir}")
        print(feed.stats())


if __name__ == "__main__":
    main()
