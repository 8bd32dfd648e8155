"""tokenfeed: rows of packed-1 from a server, one epoch of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contender import serving
from benchmarks.packing_resume_run import BATCH_SIZE, CONTEXT_LENGTH, Batch, Make, main
from client import RemoteBatches

SETTINGS: dict[str, dict[str, Any]] = {"": {"order": "packed"}}


class EpochLoader:
    """One rank."""

    def __init__(self, feed: RemoteBatches) -> None:
        """Read the first epoch, from the position of the feed."""
        self._feed = feed

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; rows of the last one that are of the next epoch have no target."""
        yield from self._feed.epoch(0, tail="pad")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the feed."""
        return self._feed.state_dict()


@contextmanager
def loaders(folder: Path, *, order: str) -> Iterator[Make]:
    """Run a server, and yield what makes feeds of it."""
    options = ("--data", str(folder / "corpus.bin"), "--host", "127.0.0.1", "--port", "0")
    with serving("server", *options, "--log-level", "warning") as address, ExitStack() as stack:

        def make(rank: int, world_size: int, state: Any) -> EpochLoader:
            feed = RemoteBatches(
                address,
                BATCH_SIZE,
                CONTEXT_LENGTH,
                order=order,
                seed=1,
                rank=rank,
                world_size=world_size,
            )
            stack.enter_context(feed)
            if state is not None:
                feed.load_state_dict(state)
            return EpochLoader(feed)

        yield make


if __name__ == "__main__":
    main(loaders, SETTINGS)
