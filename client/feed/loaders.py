"""Refuses loaders that make other batches of a feed's: torch's DataLoader where it collates, and
accelerate where it shares out one rank's batches among all.

Neither says anything to the dataset that it reads, so the frames of those who iterate are looked
at, once for each loop.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils.data import default_collate

from tokenfeed.errors import InvalidRequest


def require_own_batches(world_size: int) -> None:
    """Raise InvalidRequest unless whoever iterates hands out a rank's batches as they are.

    world_size: ranks that the batches are for; only those of several ranks can be mixed up.  To be
    called in `__iter__`.
    """
    reader = sys._getframe(1).f_back
    if reader is not None and _collates(reader):
        raise InvalidRequest(
            "batch_size",
            "of the DataLoader has to be None: the feed makes whole batches already, and another "
            "dimension would be put before them",
        )
    while world_size > 1 and reader is not None:
        if (processes := _processes_served(reader)) > 1:
            raise InvalidRequest(
                "prepare",
                f"of accelerate would share out this rank's batches among {processes} processes, "
                f"and each of the {world_size} ranks has batches of its own already. Leave the "
                "feed out of prepare() and iterate over it as it is; or make it with rank=0, "
                "world_size=1 on every process",
            )
        reader = reader.f_back


def _collates(reader: FrameType) -> bool:
    """Return whether a frame is that of what fetches for a DataLoader that stacks batches.

    A collate_fn of the caller's gets a list of batches, and may know what to do with it.
    """
    fetcher = _self_in(reader, "torch.utils.data._utils.fetch")
    return fetcher is not None and fetcher.auto_collation and fetcher.collate_fn is default_collate


def _processes_served(reader: FrameType) -> int:
    """Return among how many processes accelerate shares out what is read in a frame."""
    loader = _self_in(reader, "accelerate.data_loader")
    if type(loader).__name__ == "DataLoaderDispatcher":
        return int(loader.state.num_processes)
    if type(loader).__name__ == "IterableDatasetShard":
        return int(loader.num_processes)
    return 1


def _self_in(frame: FrameType, module: str) -> Any:
    """Return whose method a frame of a module runs, None for a frame of any other.

    The locals of others' frames are not even looked at: Python keeps what it was asked for, and so
    a training function's tensors.
    """
    if frame.f_globals.get("__name__") != module:
        return None
    return frame.f_locals.get("self")
