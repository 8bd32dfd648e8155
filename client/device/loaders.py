"""Refuses loaders that turn a feed's batches into others: torch's DataLoader if it collates, and
accelerate if it distributes the batches of one rank among all, or skips batches once more.

Neither identifies itself to the dataset, so the stack frames of the caller are inspected, once per
loop.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils.data import default_collate

from tokenfeed.errors import InvalidRequest


def require_own_batches(world_size: int, *, is_restored: bool) -> None:
    """Raise InvalidRequest unless the loader that iterates keeps a rank's batches unchanged.

    world_size: number of ranks; only with several ranks can batches be mixed up.  is_restored:
    whether the feed has loaded a state, so that no other position has to be restored.  Call it in
    `__iter__`.
    """
    reader = sys._getframe(1).f_back
    if reader is not None and _collates(reader):
        raise InvalidRequest(
            "batch_size",
            "of the DataLoader has to be None: the feed already makes whole batches, and the "
            "DataLoader would add a dimension",
        )
    while (world_size > 1 or is_restored) and reader is not None:
        if is_restored and (skipped := _batches_skipped(reader)):
            raise InvalidRequest(
                "ignore_data_skip",
                f"has to be True: accelerate would skip {skipped} batches, but the state that this "
                "feed has loaded is behind them already. Pass ignore_data_skip=True to the "
                "Trainer, or do not call skip_first_batches",
            )
        if world_size > 1 and (processes := _processes_served(reader)) > 1:
            raise InvalidRequest(
                "prepare",
                f"of accelerate would distribute this rank's batches among {processes} processes, "
                f"but each of the {world_size} ranks already has its own batches. Do not pass the "
                "feed to prepare(), iterate over it directly; or create it with rank=0, "
                "world_size=1 on every process",
            )
        reader = reader.f_back


def _collates(reader: FrameType) -> bool:
    """Return whether a frame is the fetcher of a DataLoader that stacks batches.

    A collate_fn of the user gets a list of batches, and is accepted.
    """
    fetcher = _self_in(reader, "torch.utils.data._utils.fetch")
    return fetcher is not None and fetcher.auto_collation and fetcher.collate_fn is default_collate


def _processes_served(reader: FrameType) -> int:
    """Return the number of processes to which accelerate distributes what a frame reads."""
    loader = _self_in(reader, "accelerate.data_loader")
    if type(loader).__name__ == "DataLoaderDispatcher":
        return int(loader.state.num_processes)
    if type(loader).__name__ == "IterableDatasetShard":
        return int(loader.num_processes)
    return 1


def _batches_skipped(reader: FrameType) -> int:
    """Return how many batches accelerate will skip of what a frame reads."""
    return int(getattr(_self_in(reader, "accelerate.data_loader"), "skip_batches", 0))


def _self_in(frame: FrameType, module: str) -> Any:
    """Return `self` of a frame of this module, None for a frame of any other module.

    The locals of other frames are not accessed: Python keeps a copy of accessed locals alive, and
    with it the tensors of a training function.
    """
    if frame.f_globals.get("__name__") != module:
        return None
    return frame.f_locals.get("self")
