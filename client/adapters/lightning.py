"""An adapter for Lightning's Trainer: a DataModule of feeds. It puts the state of a feed into
Lightning's checkpoints: the position after the last batch on which the weights were trained.

Lightning writes checkpoints at many moments: after a step, after a validation, in the middle of a
step that accumulates gradients, after an exception. So when a checkpoint is written, it is possible
that a batch was read, but not trained on. The adapter finds this out from Lightning's
`global_step`, which counts the steps of the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RichBatch
from ..batches.validation import WholeDataset
from ..device.target_mask import IGNORED_TARGET

Make = Callable[..., RemoteBatches]
Form = Callable[[RichBatch], Any]


class FeedData(LightningDataModule):  # type: ignore[misc]
    """A feed to train on and feeds to validate on, for `trainer.fit(model, datamodule=data)`.

        data = FeedData(
            partial(RemoteBatches, "host:50051", 32, 2048, dataset="web", order="shuffled"),
            partial(RemoteBatches, "host:50051", 32, 2048, dataset="val", order="sequential"),
        )

    An epoch of Lightning has all full batches of an epoch of the feed, and begins where the
    previous epoch ended. If the feed has an end (through num_batches, or max_epochs of a mixture),
    the whole feed is one epoch, and the training ends with it. If the feed has no epochs,
    max_steps or limit_train_batches sets the length of an epoch of Lightning. Each validation reads
    a whole epoch of its feed, with the same number of batches on every rank. The last batch is
    filled up with rows that have y = -100 throughout, so log the loss with `log_loss`.
    """

    def __init__(
        self,
        train: Make,
        validation: Make | Sequence[Make] = (),
        *,
        form: Form | None = None,
        allow: Collection[str] = (),
    ) -> None:
        """Remember what to make; does no I/O.

        train, validation: are functions that make a feed; the adapter calls them with rank=,
        world_size= and device=, which Lightning knows.
        form: turns a batch of `feed.batches()` into what the model's steps get; by default the
        steps get (x, y).
        allow: is passed to `load_state_dict` of the training feed.
        """
        super().__init__()
        self.feed: RemoteBatches | None = None
        """The one to train on, once Lightning has asked for it."""
        self._train, self._form, self._allow = train, form, allow
        self._validation = [validation] if callable(validation) else list(validation)
        self._batches: _Batches | None = None
        self._epochs: list[_Epoch] = []
        self._loaded: dict[str, Any] = {}

    def train_dataloader(self) -> _Batches:
        """Return the batches to train on. They begin at the loaded state, or after the batches on
        which this Trainer has already trained.

        Raises: InvalidRequest with overfit_batches, for an endless feed without a limit, for a
        checkpoint without a state of this class, or if the ranks have different numbers of batches;
        as for iterating a feed.
        """
        trainer = self._attached()
        if trainer.overfit_batches:
            problem = "would repeat batches, and a feed goes on; pass num_batches and max_epochs"
            raise InvalidRequest("overfit_batches", problem)
        state = self._loaded or (self.state_dict() if trainer.global_step else {})
        if trainer.ckpt_path and trainer.global_step and not state:
            problem = f"has no state of {type(self).__qualname__}, so the feed would begin again"
            raise InvalidRequest("ckpt_path", f"{problem}; load it with the class that wrote it")
        if self.feed is not None:
            self.feed.close()
        self.feed = self._open(self._train)
        if state:
            self.feed.load_state_dict(state["feed"], allow=self._allow)
        self._batches = _Batches(self.feed, trainer, self._form, state)
        self._loaded = {}
        return self._batches

    def val_dataloader(self) -> list[_Epoch]:
        """Return the batches of each validation feed; each `for` over them starts at the beginning
        of the feed.
        """
        self._close_validation()
        self._epochs = [_Epoch(self._open(make), self._form) for make in self._validation]
        return self._epochs

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the feed after the last batch on which the weights were trained;
        before the training return {}. Lightning puts this state into all of its checkpoints.
        """
        return self._loaded if self._loaded or self._batches is None else self._batches.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the position at which the training continues; `trainer.validate` and
        `trainer.test` do not change this position.
        """
        if self.trainer is None or self.trainer.state.fn in (None, TrainerFn.FITTING):
            self._loaded = state

    def teardown(self, stage: str) -> None:
        """Close the feeds; `state_dict` still returns their state."""
        self._close_validation()
        if self.feed is not None and stage == TrainerFn.FITTING:
            self.feed.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the feeds after an exception, since Lightning does not call `teardown` then."""
        self.teardown(TrainerFn.FITTING)

    def _attached(self) -> Trainer:
        if self.trainer is None:
            raise InvalidRequest("datamodule", "has no trainer; pass it to trainer.fit")
        return self.trainer

    def _open(self, make: Make) -> RemoteBatches:
        """Make a feed with the data-parallel coordinates of Lightning's strategy: ranks that share
        the tensors of one model get the same rows.
        """
        trainer = self._attached()
        ranks = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        return make(
            rank=ranks["rank"],
            world_size=ranks["num_replicas"],
            device=trainer.strategy.root_device,
        )

    def _close_validation(self) -> None:
        for epoch in self._epochs:
            epoch.close()


def log_loss(module: LightningModule, name: str, losses: Tensor, y: Tensor) -> Tensor:
    """Log the mean loss of all targets of an epoch, over all batches and ranks.

    `module.log(name, mean)` would give a batch with few targets the weight of a full batch, and the
    mean of a batch without targets is not a number.
    losses: has one loss for each target, 0 where y is -100, as `cross_entropy(...,
    reduction="none")` returns them.
    y: is the y of the batch.
    Returns: the mean loss of this batch, 0 if it has no target.
    """
    targets = int((y != IGNORED_TARGET).sum())
    mean = losses.sum() / max(1, targets)
    # A float: Lightning averages the weights over ranks, and would round integers down.
    weight: Any = float(targets)
    module.log(name, mean, batch_size=weight, on_step=False, on_epoch=True, sync_dist=True)
    return mean


class _Batches:
    """The batches of a feed for Lightning's fit loop. Their number is known, so that Lightning
    reads none ahead: what was read last is what is trained on.
    """

    def __init__(
        self, feed: RemoteBatches, trainer: Trainer, form: Form | None, state: dict[str, Any]
    ) -> None:
        """state: of FeedData, that the feed has loaded; or {}."""
        self._feed, self._trainer, self._fetched = feed, trainer, 0
        self._source: Iterator[Any] = iter(feed) if form is None else map(form, feed.batches())
        ranks = trainer.distributed_sampler_kwargs or {"num_replicas": 1}
        self._world_size = ranks["num_replicas"]
        self._progress = trainer.fit_loop.epoch_loop.batch_progress
        if state and self._progress.total.ready:  # not one that was loaded by hand
            self._restore_progress(**{k: v for k, v in state.items() if k != "feed"})
        self._left = feed.batches_left
        self._length = self._epoch_length()
        self._require_equal_lengths()
        self._processed_before = self._progress.total.processed
        self._has_ended = False
        self._open_step = self._reached()
        self._step = trainer.global_step

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self._trainer.global_step != self._step:
            # The first batch of another step: before it is read, so that no Ctrl-C comes between.
            self._open_step = self._reached()
            self._step = self._trainer.global_step
        batch = next(self._source, None)
        if batch is None and self._has_ended:
            problem = "end before min_steps or min_epochs of the Trainer; lower these"
            raise InvalidRequest("num_batches", problem)
        if batch is not None:
            self._fetched += 1
        if batch is None or self._fetched == self._left:
            # Or Lightning would begin one empty epoch after another.
            self._has_ended = self._trainer.should_stop = True
        if batch is None:
            raise StopIteration
        return batch

    def state(self) -> dict[str, Any]:
        """Return the state of FeedData."""
        is_learned = self._trainer.global_step != self._step
        state, stride, learned = self._reached() if is_learned else self._open_step
        processed = self._progress.total.processed - self._processed_before
        return {
            "feed": state,
            "batch_samples": stride,
            "batches_to_repeat": processed - learned,
        }

    def _reached(self) -> tuple[dict[str, Any], int, int]:
        """Return the state of the feed, the rows of its next batch on all ranks, and how many
        batches were fetched. Batches of two context lengths have as many tokens, so it is the same
        batch at the load that tells whether batches have another size there.
        """
        stride = self._feed.batch_size * self._world_size
        return self._feed.state_dict(), stride, self._fetched

    def state_dict(self) -> dict[str, Any]:
        """Return {}: FeedData has the state. Lightning warns of loaders without this."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: FeedData has loaded the state, also where Lightning would load none."""

    def _restore_progress(self, batch_samples: int, batches_to_repeat: int) -> None:
        """Set Lightning's counters of batches to what the weights have learned, in batches of the
        present number of ranks: it counts by them where a step and an epoch end.
        """
        current, total = self._progress.current, self._progress.total
        if batches_to_repeat > 0 or current.ready > current.processed:
            self._progress.is_last_batch = False  # it was read, and is still to come
        stride = self._feed.batch_size * self._world_size
        learned = (current.processed - batches_to_repeat) * batch_samples // stride
        moved = learned - current.processed
        for counts in (current, total):
            if batches_to_repeat > 0:  # in the middle of a step: the step before was complete
                counts.ready = counts.started = counts.completed = counts.processed
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + moved)

    def _epoch_length(self) -> int:
        trainer = self._trainer
        done: int = self._progress.current.processed if trainer.fit_loop.restarting else 0
        if self._left is not None:
            return done + self._left
        if self._feed.position.epoch is not None:
            return max(1, self._feed.batches_per_epoch)
        if trainer.max_steps != -1:
            steps = max(0, trainer.max_steps - trainer.global_step)
            return done + int(steps * trainer.accumulate_grad_batches)
        if isinstance(trainer.limit_train_batches, int):
            return int(trainer.limit_train_batches)
        raise InvalidRequest(
            "max_steps", "is missing: this feed is endless. Pass it, or limit_train_batches=N"
        )

    def _require_equal_lengths(self) -> None:
        """Raise InvalidRequest on all ranks if one has more batches: it would wait for the others
        for ever.
        """
        strategy = self._trainer.strategy
        own = torch.tensor([self._length, -self._length], device=strategy.root_device)
        longest, shortest = strategy.reduce(own, reduce_op="max").tolist()
        if longest != -shortest:
            problem = f"differ: one rank has {-shortest} batches, another one {longest}"
            raise InvalidRequest("num_batches", f"{problem}. Make the same feed on all ranks")


class _Epoch(WholeDataset):
    """A whole epoch of a feed, from its beginning at each `for`."""

    def __init__(self, feed: RemoteBatches, form: Form | None) -> None:
        super().__init__(feed)
        self._form = form

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._form is None else map(self._form, self.batches())
