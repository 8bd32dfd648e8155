"""Refuses loaders that turn a feed's batches into others: torch's DataLoader if it collates, also
as transformers' Trainer makes it; accelerate if it distributes the batches of one rank among all;
accelerate and torchdata if they skip batches once more; and Lightning, which would store a state
that it does not resume from.

None of them identifies itself to the dataset, so the stack frames of the caller are inspected, once
per loop or state. Knows nothing of torch.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from tokenfeed.errors import InvalidRequest

_DEFAULT_COLLATE = "torch.utils.data._utils.collate.default_collate"


def require_own_batches(world_size: int, *, is_restored: bool) -> None:
    """Raise InvalidRequest unless the loader that iterates keeps a rank's batches unchanged.

    world_size: number of ranks; only with several ranks can batches be mixed up.  is_restored:
    whether the feed has loaded a state, so that no other position has to be restored.  Call it in
    `__iter__`.
    """
    reader = sys._getframe(1).f_back
    if reader is not None and (collator := _collator(reader)):
        if collator != _DEFAULT_COLLATE:
            raise InvalidRequest(
                "train_dataset",
                "of transformers' Trainer cannot be a feed, whose batches it would take for single "
                "rows: use FeedTrainer of tokenfeed.client.adapters.transformers in its place, to "
                "train and to evaluate",
            )
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
        if is_restored and (forwarded := _batches_forwarded(reader)):
            raise InvalidRequest(
                "dataset",
                f"around this feed has no state_dict: torchdata would skip {forwarded} batches, "
                "but the state that this feed has loaded is behind them already. Give it the "
                "state_dict and load_state_dict of the feed, or load the state of the loader alone",
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


def require_no_lightning() -> None:
    """Raise InvalidRequest if Lightning asks for the state of a feed, or of an epoch of one. It
    takes a batch ahead of a loader without a length, and loads no state where an epoch has ended.
    Call it in `state_dict`.
    """
    caller = sys._getframe(1).f_back
    while caller is not None and _module_of(caller).startswith("torchdata."):
        caller = caller.f_back  # of the loader of torchdata
    if caller is not None and _module_of(caller).endswith(".utilities.combined_loader"):
        raise InvalidRequest(
            "train_dataloader",
            "cannot be a feed or an epoch of one: Lightning reads a batch ahead, or loads no state "
            "where an epoch has ended, so a resumed run would lose or repeat rows. Pass "
            "datamodule=tokenfeed.client.adapters.lightning.FeedData(...) to trainer.fit instead",
        )


def _collator(reader: FrameType) -> str:
    """Return the dotted name of what makes batches of single rows, if a frame is the fetcher of a
    DataLoader that stacks; "" if not.

    A collate_fn of the user gets a list of batches, and is accepted.
    """
    fetcher = _self_in(reader, "torch.utils.data._utils.fetch")
    if fetcher is None or not fetcher.auto_collation:
        return ""
    found = fetcher.collate_fn  # a function, or an object of a class
    name = f"{found.__module__}.{getattr(found, '__name__', '')}"
    takes_rows = name == _DEFAULT_COLLATE or name.startswith("transformers.")
    return name if takes_rows else ""


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


def _batches_forwarded(reader: FrameType) -> int:
    """Return how many batches torchdata skips of what a frame reads, as it restores a dataset
    without a state.
    """
    loader = _self_in(reader, "torchdata.stateful_dataloader.stateful_dataloader")
    # The frames of its ordinary `next` have other names.
    if reader.f_code.co_name != "load_state_dict" or not hasattr(loader, "_dataset"):
        return 0
    return 0 if hasattr(loader._dataset, "state_dict") else int(loader._num_yielded)


def _self_in(frame: FrameType, module: str) -> Any:
    """Return `self` of a frame of this module, None for a frame of any other module.

    The locals of other frames are not accessed: Python keeps a copy of accessed locals alive, and
    with it the tensors of a training function.
    """
    return frame.f_locals.get("self") if _module_of(frame) == module else None


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
