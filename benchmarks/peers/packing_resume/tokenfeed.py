"""tokenfeed: rows of packed-1 from a server, one epoch of it.

`tokenfeed ingest` takes text. The parquet file has tokens, so that they can be counted; they are
written in Megatron's format first, document by document.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

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
    write_megatron(folder)
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


def write_megatron(folder: Path) -> None:
    """Write corpus.bin and corpus.idx, the documents of corpus.parquet."""
    column = pyarrow.parquet.read_table(folder / "corpus.parquet").column("tokens")
    lists = column.combine_chunks()
    firsts = lists.offsets.to_numpy()
    lists.flatten().to_numpy().astype("<i4").tofile(folder / "corpus.bin")
    with (folder / "corpus.idx").open("wb") as index:
        documents = len(lists)
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, documents, documents + 1))
        np.diff(firsts).astype("<i4").tofile(index)
        (firsts[:-1].astype(np.int64) * 4).astype("<i8").tofile(index)
        np.arange(documents + 1, dtype="<i8").tofile(index)


if __name__ == "__main__":
    main(loaders, SETTINGS)
