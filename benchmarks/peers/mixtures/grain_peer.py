"""grain: MapDataset.mix with ElasticIterator, or IterDataset.mix.

Sources: google-grain.readthedocs.io (mixing, checkpointing), the docstring of ElasticIterator, the
changelog of grain 0.2.15 ("support for changing IterDataset.mix components and weights after a
checkpoint"), and MaxText's guide to grain, for another number of hosts.
`map`: one global order, divided by ElasticIterator, which is documented to resume with other shards
and another global batch size. No way to change its weights is documented: new datasets are mixed
with the new weights, and the state is loaded, which grain accepts.
`iter`: each rank shuffles each source, takes its shard, and mixes by name. Where the weights
change, datasets with the new weights load the states, as documented. With half of the ranks, each
restores the iterators of two and takes batches of them in turn, as MaxText does.
`iter, 2 workers`: the same with mp_prefetch. MaxText's guide warns that a changed mixture then
skips some rows.
Orders: of each source the shuffled rows; with `iter`, of each shard, or of each worker's part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
import numpy.typing as npt
from absl import flags
from grain.experimental import ElasticIterator
from grain.sharding import ShardOptions

from benchmarks.mixture_counts import Order
from benchmarks.mixture_run import (
    AFTER,
    BATCH_SIZE,
    BEFORE,
    CHANGE_STEP,
    RANKS,
    RESUMED_BATCH_SIZE,
    RESUMED_RANKS,
    SOURCES,
    STOP_STEP,
    TOTAL,
    Delivered,
    codes,
    interleaved,
    main,
    resumed_steps,
    rows_of,
)

SETTINGS = {
    "map": {"elastic": True},
    "iter": {},
    "iter, 2 workers": {"workers": 2},
}

Sources = dict[str, grain.MapDataset]


class Rows:
    """A source with random access."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read it."""
        self._rows = rows_of(folder, name)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint16]:
        """Return uint16 [T + 1]."""
        row: npt.NDArray[np.uint16] = self._rows[index]
        return row


def run(folder: Path, seed: int, *, elastic: bool = False, workers: int = 0) -> Delivered:
    """Run the iterators of all ranks in this process."""
    # Workers are started with absl's flags, which only an absl application has parsed.
    flags.FLAGS(["grain_peer"])
    sources = {
        name: grain.MapDataset.source(Rows(folder, name)).seed(seed * 10 + number).shuffle()
        for number, name in enumerate(SOURCES)
    }
    return run_elastic(sources) if elastic else run_sharded(sources, workers)


def run_elastic(sources: Sources) -> Delivered:
    """One global order. The state of any rank restores every rank."""

    def iterators(weights: Sequence[int], ranks: int, batch_size: int) -> list[Any]:
        mixed = grain.MapDataset.mix([one.repeat() for one in sources.values()], weights)
        return [
            iter(ElasticIterator(mixed, ranks * batch_size, ShardOptions(rank, ranks)))
            for rank in range(ranks)
        ]

    started = iterators(BEFORE, RANKS, BATCH_SIZE)
    rows = deliver(started, CHANGE_STEP)
    changed = iterators(AFTER, RANKS, BATCH_SIZE)
    for one in changed:
        one.set_state(started[0].get_state())
    rows += deliver(changed, STOP_STEP - CHANGE_STEP)
    resumed = iterators(AFTER, RESUMED_RANKS, RESUMED_BATCH_SIZE)
    for one in resumed:
        one.set_state(changed[0].get_state())
    rows += deliver(resumed, resumed_steps())
    return Delivered(rows, [order_of(one) for one in sources.values()])


def run_sharded(sources: Sources, workers: int) -> Delivered:
    """A shard of each source for each rank, and a state of each rank."""
    iterator = partial(sharded, sources, workers)
    started = [iterator(BEFORE, rank, BATCH_SIZE) for rank in range(RANKS)]
    rows = deliver(started, CHANGE_STEP)
    changed = [iterator(AFTER, rank, BATCH_SIZE) for rank in range(RANKS)]
    restore(changed, started)
    rows += deliver(changed, STOP_STEP - CHANGE_STEP)
    resumed = [iterator(AFTER, shard, RESUMED_BATCH_SIZE) for shard in range(RANKS)]
    restore(resumed, changed)
    ranks = [in_turn(resumed[rank::RESUMED_RANKS]) for rank in range(RESUMED_RANKS)]
    rows += deliver(ranks, resumed_steps())
    for one in resumed:
        one.close()
    count = RANKS * max(workers, 1)
    parts = [one[part::count] for one in sources.values() for part in range(count)]
    return Delivered(rows, [order_of(part) for part in parts])


def sharded(
    sources: Sources, workers: int, weights: Sequence[int], rank: int, batch_size: int
) -> Any:
    """Return the iterator of a rank."""
    parts = {name: one[rank::RANKS].repeat().to_iter_dataset() for name, one in sources.items()}
    named = dict(zip(SOURCES, map(float, weights), strict=True))
    dataset = grain.IterDataset.mix(parts, named).batch(batch_size)
    if workers:
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=4)
        dataset = dataset.mp_prefetch(options)
    return iter(dataset)


def restore(iterators: Sequence[Any], saved: Sequence[Any]) -> None:
    """Load the state of each saved iterator into one with the same shard."""
    for one, before in zip(iterators, saved, strict=True):
        one.set_state(before.get_state())
    for before in saved:
        before.close()


def in_turn(iterators: Sequence[Any]) -> Iterator[Any]:
    """Yield batches of several iterators, one of each in turn."""
    while True:
        for one in iterators:
            yield next(one)


def deliver(iterators: Sequence[Iterator[Any]], steps: int) -> list[int]:
    """Return the rows of all ranks."""
    return [
        row for _ in range(steps) for row in interleaved([codes(next(one)) for one in iterators])
    ]


def order_of(rows: grain.MapDataset) -> Order:
    """Return the order of a finite dataset."""
    return Order(0, TOTAL, codes(np.stack([rows[index] for index in range(len(rows))])).tolist())


if __name__ == "__main__":
    main(run, SETTINGS)
