"""An adapter for OLMo-core: a data loader whose epochs, batch size and state OLMo-core's Trainer
controls.

    data_loader = FeedDataLoader(
        train_module, "host:50051", 4096, global_batch_size=2**22, work_dir="/tmp", order="shuffled"
    )
    trainer = trainer_config.build(train_module, data_loader)

Each rank reads the rows of its data-parallel rank. The state is the same on all ranks, so a run can
resume from a checkpoint with another number of ranks or another batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from olmo_core.data import DataLoaderBase
from olmo_core.distributed.utils import get_rank, get_world_size

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RemoteOptions, RichBatch
from ..device.target_mask import IGNORED_TARGET
from ..feed.options import takes
from ..transport.addresses import Targets


class FeedDataLoader(DataLoaderBase):  # type: ignore[misc]
    """A feed in the form of a Trainer's data loader.

    An epoch of the trainer is an epoch of the feed, without the last rows if they do not fill a
    batch on all ranks. A mixture, the order "random" and a feed with num_batches count as a single
    epoch: when the feed ends, the trainer ends too, on all ranks, even before its max_duration.
    """

    @takes(RemoteOptions)
    def __init__(
        self,
        train_module: Any,
        target: Targets,
        context_length: int,
        *,
        global_batch_size: int,
        work_dir: str,
        doc_lens: bool = True,
        **options: Any,
    ) -> None:
        """Describe the batches; does no I/O.

        train_module is the train module of the trainer; it knows the data-parallel group.
        target means what it does for RemoteBatches.
        context_length is the same in the whole run.
        global_batch_size is the number of tokens of a step on all ranks, as in OLMo-core.
        work_dir is required by OLMo-core; nothing is written there.
        doc_lens says whether batches have doc_lens, so that attention keeps documents apart, if it
        is known where they begin. Flash backends use doc_lens; with torch's attention the trainer
        refuses it.
        options are arguments of RemoteBatches, except device, rank, world_size and group.
        Raises: InvalidRequest, naming the argument and its limit, and the errors of RemoteBatches.
        """
        group = train_module.dp_process_group
        super().__init__(
            work_dir=work_dir,
            global_batch_size=global_batch_size,
            dp_world_size=get_world_size(group),
            dp_rank=get_rank(group),
        )
        if getattr(train_module, "label_ignore_index", IGNORED_TARGET) != IGNORED_TARGET:
            raise InvalidRequest("label_ignore_index", f"has to be {IGNORED_TARGET}, as in y")
        if isinstance(context_length, Mapping):
            raise InvalidRequest("context_length", "has to be one number for the whole run")
        self._train_module = train_module
        self._doc_lens = doc_lens
        self._target, self._context_length = target, context_length
        first, batches = options.pop("start_sample", None), options.pop("num_batches", None)
        self._first_sample = options.pop("start_step", 0) * self._rows if first is None else first
        self._end_sample = None if batches is None else self._first_sample + batches * self._rows
        self._options = {**options, "group": group}
        self._has_ended = False
        self.feed = self._open(self._first_sample)
        """The RemoteBatches that is read: for its history, and to close it."""

    # --- batches ---

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the rest of the epoch.  Raises: as for iterating a feed."""
        while not self._is_behind_epoch():
            feed = self.feed
            for batch in self._rest_of_epoch():
                yield self._arrays(batch)
                if self.feed is not feed:  # for another batch size
                    break
            else:
                break
        if self.feed.closed:
            raise InvalidRequest("feed", "was closed while the trainer read it")
        self._has_ended = not self._has_epochs

    def _is_behind_epoch(self) -> bool:
        """Whether the feed has delivered this epoch; the next `for` over it would repeat it."""
        is_begun = self._has_epochs and self.batches_processed > 0
        return is_begun and self.feed.position.epoch != self.epoch - 1

    def _rest_of_epoch(self) -> Iterator[RichBatch]:
        if not self._has_epochs:
            return self.feed.batches()
        is_first = self.epoch == 1 and not self.batches_processed
        if is_first and self._first_sample and self.feed.position.epoch != 0:
            problem = f"{self._first_sample} is behind epoch 0, with which the trainer begins"
            raise InvalidRequest("start_sample", problem)
        if self.batches_processed:
            self.feed.load_state_dict(self.feed.state_dict())  # go on, and do not begin again
        return self.feed.epoch(self.epoch - 1).batches()

    def _arrays(self, batch: RichBatch) -> dict[str, Any]:
        # With labels, which are shifted already, no label_mask is needed.
        arrays: dict[str, Any] = {"input_ids": batch.x, "labels": batch.y}
        if self._doc_lens and batch.documents is not None:
            arrays["doc_lens"], arrays["max_doc_lens"] = batch.doc_lens()
        return arrays

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch of zeros for a dry run, without reading from the feed."""
        shape = self._rows // self.dp_world_size, self._context_length
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "labels")}

    # --- epochs ---

    @property
    def total_batches(self) -> int | None:
        """The number of batches in an epoch; None for a feed without end. This waits until a server
        has described the dataset.

        Raises: InvalidRequest if an epoch has no batch; as for iterating a feed.
        """
        if not self._has_epochs:
            end = self._end_sample
            return None if end is None else (end - self._first_sample) // self._rows
        if (count := self.feed.batches_per_epoch) == 0:
            problem = f"{self.global_batch_size} tokens are more than an epoch has"
            raise InvalidRequest("global_batch_size", problem)
        return count

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Begin an epoch. If the feed has ended, the trainer ends too. epoch: is the number of the
        epoch, from 1; by default the next one.
        """
        self._epoch: int = (self._epoch or 0) + 1 if epoch is None else epoch
        if self._has_ended:
            # It would begin one empty epoch after another. All ranks get as many batches.
            self._train_module.trainer.cancel_run("the feed has ended", no_sync=True)

    @property
    def global_batch_size(self) -> int:
        """The number of tokens of a step on all ranks. A callback of the trainer may change this
        number by an integer factor, between two batches.
        Raises: InvalidRequest unless each rank gets whole rows.
        """
        tokens: int = self._global_batch_size
        return tokens

    @global_batch_size.setter
    def global_batch_size(self, tokens: int) -> None:
        self._whole_rows(tokens)
        DataLoaderBase.global_batch_size.fset(self, tokens)
        before, state = self.feed, self.feed.state_dict()
        before.close()
        self.feed = self._open(before.position.samples)
        self.feed.load_state_dict(state)

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        """Return the number of tokens of a batch on all ranks, including tokens that are not
        targets.
        """
        return self.global_batch_size

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return, as plain values, the position after the last batch; it is the same on all
        ranks.
        """
        return {
            "feed": self.feed.state_dict(),
            "batches_processed": self.batches_processed,
            "global_batch_size": self.global_batch_size,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of any rank. Raises: InvalidRequest for a state of another data
        loader, and the errors of `load_state_dict` of RemoteBatches.
        """
        if "feed" not in state_dict:
            problem = "is of another data loader; begin a new run, or at a start_sample"
            raise InvalidRequest("state_dict", problem)
        self.feed.load_state_dict(state_dict["feed"])
        tokens = state_dict["batches_processed"] * state_dict["global_batch_size"]
        # Rounded up: with 0 an epoch that has begun would begin again.
        self.batches_processed = -(-tokens // self.global_batch_size)
        self._has_ended = False

    # --- internals ---

    @cached_property
    def _has_epochs(self) -> bool:
        return self._end_sample is None and self.feed.position.epoch is not None

    @property
    def _rows(self) -> int:
        """Rows of a batch on all ranks."""
        return self._whole_rows(self.global_batch_size)

    def _whole_rows(self, tokens: int) -> int:
        row_tokens = self._context_length * self.dp_world_size
        if tokens <= 0 or tokens % row_tokens:
            problem = (
                f"{tokens} is not a multiple of {row_tokens}, the tokens of a row on each of "
                f"{self.dp_world_size} ranks"
            )
            raise InvalidRequest("global_batch_size", problem)
        return tokens // self._context_length

    def _open(self, first_sample: int) -> RemoteBatches:
        end, rows = self._end_sample, self._rows
        return RemoteBatches(
            self._target,
            rows // self.dp_world_size,
            self._context_length,
            start_sample=first_sample,
            num_batches=None if end is None else max(0, end - first_sample) // rows,
            **self._options,
        )
