"""An adapter for grain: a grain dataset whose elements are batches of NumPy arrays, with the names
that MaxText uses.

    dataset = FeedDataset("host:50051", 32, 2048, order="packed", rank=rank, world_size=world_size)
    iterator = iter(dataset.map(augmented))
    for batch in iterator:
        arrays = jax.make_array_from_process_local_data(sharding, batch)

All arrays are int32. Knows nothing of torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from grain.python import DatasetIterator, IterDataset

from ..batches.arrays import NumpyBatches, NumpyRichBatch
from ..device.target_mask import IGNORED_TARGET
from ..feed.options import FeedOptions, takes
from ..transport.addresses import Targets


class FeedDataset(IterDataset):  # type: ignore[misc]
    """A feed in the form of grain's IterDataset. Each iterator over it opens its own feed, which
    begins at the first row.

    Elements are dicts of int32 [batch_size, context_length]: inputs; targets, which are inputs
    shifted by one token, and 0 where no target counts; inputs_position, which counts from 0 in each
    document; inputs_segmentation, the number of the token's document in its row, from 1, and 0 at
    padding; and targets_segmentation, which equals inputs_segmentation, but is 0 where no target
    counts. If it is not known of a dataset where its documents begin, each row counts as one
    document.
    """

    @takes(FeedOptions)
    def __init__(
        self, target: Targets, batch_size: int, context_length: int, **options: Any
    ) -> None:
        """Remember what to read; does no I/O.

        The arguments are those of NumpyBatches, without dtype. If several processes share each
        batch, pass rank=jax.process_index() and world_size=jax.process_count().
        """
        super().__init__()
        self._arguments = target, batch_size, context_length
        self._options = options

    def __iter__(self) -> FeedIterator:
        """Return an iterator.  Raises: as for NumpyBatches."""
        return FeedIterator(NumpyBatches(*self._arguments, **self._options))


class FeedIterator(DatasetIterator):  # type: ignore[misc]
    """An iterator over the batches of one feed."""

    def __init__(self, feed: NumpyBatches) -> None:
        """feed: must not be read by anything else."""
        super().__init__()
        self.feed = feed
        """The NumpyBatches that is read: for its history and statistics."""
        self._batches = feed.batches()

    def __next__(self) -> dict[str, Any]:
        """Return the next element.  Raises: as for iterating a feed."""
        return _arrays(next(self._batches))

    def get_state(self) -> dict[str, Any]:
        """Return, as plain values for JSON, the position after the element that was last delivered.
        It is the same in all processes.
        """
        return self.feed.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from the state of any process, even if the number of processes has changed.
        Raises: the errors of `load_state_dict` of NumpyBatches.
        """
        self.feed.load_state_dict(state)
        self._batches = self.feed.batches()  # one that has ended would not begin again

    def close(self) -> None:
        """End threads and connection."""
        super().close()
        self.feed.close()

    def __del__(self) -> None:
        """Do nothing, because a feed closes itself when its last reference goes. When Python exits,
        the objects that `close` needs may already be gone.
        """


def _arrays(batch: NumpyRichBatch) -> dict[str, Any]:
    x, y = batch
    counts = y != IGNORED_TARGET
    if batch.documents is None:
        positions = np.broadcast_to(np.arange(x.shape[1], dtype=x.dtype), x.shape).copy()
        segments = (~batch.padding_mask).astype(x.dtype)
    else:
        positions, segments = batch.positions, batch.segment_ids
    return {
        "inputs": x,
        "targets": np.where(counts, y, 0),
        "inputs_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": np.where(counts, segments, 0),
    }
