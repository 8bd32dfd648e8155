"""PyTorch: WeightedRandomSampler over a ConcatDataset, with its draws divided among the ranks.

Source: docs.pytorch.org/docs/stable/data.html. A WeightedRandomSampler knows no ranks, and a
DistributedSampler no weights. The usual wrapper lets all ranks draw the same list from one seed,
and gives rank r of n every n-th of it. A sampler has no state and its weights are fixed. So where
the weights change, a new one is made, with another seed; and where the run resumes, the same one
draws again, and what all ranks have consumed is skipped (as `skip_first_batches` of accelerate
does, but counted in rows, so that another number of ranks does no harm). One worker per loader
prefetches.
Orders: the list of each sampler. What a sampler would have drawn after the change is not lost: the
row can be drawn by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, WeightedRandomSampler

from benchmarks.mixture_counts import Order
from benchmarks.mixture_run import (
    AFTER,
    BATCH_SIZE,
    BEFORE,
    CHANGE_STEP,
    CHANGED,
    RANKS,
    RESUMED_BATCH_SIZE,
    RESUMED_RANKS,
    SOURCES,
    STOP_STEP,
    STOPPED,
    TOTAL,
    Delivered,
    codes,
    interleaved,
    main,
    resumed_steps,
    rows_of,
)

SETTINGS = {
    "with replacement": {"replacement": True},
    "without replacement": {"replacement": False},
}


class Source(Dataset[torch.Tensor]):
    """The rows of a source."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read them."""
        self._rows = torch.from_numpy(rows_of(folder, name).astype(np.int64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return int64 [T + 1]."""
        return self._rows[index]


class RankSampler(Sampler[int]):
    """A rank's share of what a sampler draws, without the rows that were consumed before."""

    def __init__(self, drawn: Sequence[int], consumed: int, rank: int, ranks: int) -> None:
        """Take the same list on every rank."""
        self._own = drawn[consumed + rank :: ranks]

    def __iter__(self) -> Iterator[int]:
        """Yield the own rows."""
        return iter(self._own)

    def __len__(self) -> int:
        """Return their number."""
        return len(self._own)


def run(folder: Path, seed: int, *, replacement: bool) -> Delivered:
    """Run the loaders of all ranks in this process."""
    dataset = ConcatDataset([Source(folder, name) for name in SOURCES])
    first = draw(dataset, BEFORE, TOTAL, 2 * seed, replacement)
    then = draw(dataset, AFTER, TOTAL - CHANGED, 2 * seed + 1, replacement)
    rows = deliver(dataset, first, 0, RANKS, BATCH_SIZE, CHANGE_STEP)
    rows += deliver(dataset, then, 0, RANKS, BATCH_SIZE, STOP_STEP - CHANGE_STEP)
    consumed, steps = STOPPED - CHANGED, resumed_steps()
    rows += deliver(dataset, then, consumed, RESUMED_RANKS, RESUMED_BATCH_SIZE, steps)
    orders = [
        Order(0, CHANGED, order_of(dataset, first)),
        Order(CHANGED, TOTAL, order_of(dataset, then)),
    ]
    return Delivered(rows, orders)


def draw(
    dataset: ConcatDataset[torch.Tensor],
    percent: Sequence[int],
    count: int,
    seed: int,
    replacement: bool,
) -> list[int]:
    """Return the indices that a new sampler draws. Each row has its source's weight / its size."""
    sizes = [len(source) for source in dataset.datasets]  # type: ignore[arg-type]
    weights = np.repeat(np.array(percent) / sizes, sizes)
    generator = torch.Generator().manual_seed(seed)
    return list(WeightedRandomSampler(weights.tolist(), count, replacement, generator))


def deliver(
    dataset: ConcatDataset[torch.Tensor],
    drawn: Sequence[int],
    consumed: int,
    ranks: int,
    batch_size: int,
    steps: int,
) -> list[int]:
    """Return the rows of all ranks."""
    loaders = [
        DataLoader(
            dataset,
            batch_size,
            sampler=RankSampler(drawn, consumed, rank, ranks),
            num_workers=1,
            drop_last=True,
        )
        for rank in range(ranks)
    ]
    together = zip(*loaders, strict=False)
    return [row for step in islice(together, steps) for row in interleaved([*map(codes, step)])]


def order_of(dataset: ConcatDataset[torch.Tensor], drawn: Sequence[int]) -> list[int]:
    """Return the rows that were drawn, each one where it comes first."""
    return codes(torch.stack([dataset[index] for index in dict.fromkeys(drawn)])).tolist()


if __name__ == "__main__":
    main(run, SETTINGS)
