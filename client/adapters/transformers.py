"""An adapter for the Trainer of transformers. Each rank trains on its own rows, and a checkpoint
has the state of the feed after the last batch on which the weights were trained. Adapters for
subclasses of Trainer, such as trl.py, use this one as a base class.

The Trainer gets a loader that yields numbers, one for each batch, which it may count and skip. The
batches themselves come from the feed, so the Trainer cannot distribute them among ranks, or skip
them a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, TorchEpoch
from ..batches.validation import WholeDataset
from ..device.target_mask import IGNORED_TARGET

_LOG = logging.getLogger("tokenfeed.client")

_FEEDS = (RemoteBatches, TorchEpoch, WholeDataset)


class FeedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that trains and evaluates on feeds.

        trainer = FeedTrainer(model, args, train_dataset=feed, eval_dataset=validation)
        trainer.train()

    A checkpoint has the state of the feed after the last step, and `train` with
    `resume_from_checkpoint` loads this state, on any number of ranks. The training takes
    `max_steps` steps; without `max_steps`, `num_train_epochs` counts epochs of the feed. Training
    ends before a step for which a rank has too few batches.
    """

    _stand_in: Any = range(0)
    """What the constructor of the Trainer gets in the place of feeds."""
    _refused: Mapping[str, str] = {
        "auto_find_batch_size": "cannot make the batches of a feed smaller; omit it",
        "compute_loss_func": "would shift the targets once more, as the usual ones do; omit it",
        "label_smoothing_factor": "has to be 0: the Trainer would shift the targets once more to "
        "smooth them",
    }
    """Arguments that do not go with a feed, unless they have their default, and why."""

    def __init__(
        self,
        *args: Any,
        train_dataset: RemoteBatches | TorchEpoch | None = None,
        eval_dataset: Any = None,
        allow: Collection[str] = (),
        **kwargs: Any,
    ) -> None:
        """Take the arguments of the Trainer.

        train_dataset: is a feed, or one epoch of it.  eval_dataset: is validation_feeds(...), an
        epoch of another feed, a dict of these, or whatever else the Trainer takes.  allow: names
        what may differ in the state of a checkpoint, as for `load_state_dict` of the feed.
        Raises: InvalidRequest for a train_dataset that is no feed; and for arguments of the Trainer
        that do not go with one: a loss function, label_smoothing_factor, auto_find_batch_size,
        context or sequence parallelism, and several GPUs in one process.
        """
        if not isinstance(train_dataset, RemoteBatches | TorchEpoch | None):
            problem = "is no feed; pass RemoteBatches(...), or feed.epoch(k)"
            raise InvalidRequest("train_dataset", problem)
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        for name, problem in self._refused.items():
            is_default = getattr(given, name, None) == getattr(type(given), name, None)
            if not is_default or kwargs.get(name) is not None:
                raise InvalidRequest(name, problem)
        has_feeds = bool(_feeds_of(eval_dataset))
        super().__init__(
            *args,
            train_dataset=self._stand_in,
            eval_dataset=self._stand_in if has_feeds else eval_dataset,
            **kwargs,
        )
        if has_feeds:
            self.eval_dataset = eval_dataset
        if self.args.n_gpu > 1:
            problem = "would be shared by one process; start one for each GPU, with torchrun"
            raise InvalidRequest("n_gpu", f"{self.args.n_gpu} GPUs {problem}")
        if self.get_cp_size() > 1 or self.get_sp_size() > 1:
            problem = "splits rows, and accelerate then lets documents of a row see each other"
            raise InvalidRequest("parallelism_config", f"{problem}; use tensor parallelism")
        if getattr(self, "compute_loss_func", None) is not None:  # of TRL before 1.16
            raise InvalidRequest("compute_loss_func", self._refused["compute_loss_func"])
        self._feed = train_dataset
        self._is_resumed, self._batches_of_run = False, 0
        self._batches: Iterator[Any] = iter(())
        self._numbers: Any = None  # those of the epoch that the Trainer is in
        self._in_hand: list[Any] = []  # batches of a step that the optimizer has not made
        self._losses: list[torch.Tensor] | None = None  # of an evaluation: sums, and their targets
        self.add_callback(_position_callback(self, allow))

    # --- training ---

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, with the arguments of `train` of the Trainer, such as resume_from_checkpoint."""
        self._is_resumed = bool(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def feed_state(self) -> dict[str, Any]:
        """Return the state of the feed after the last batch on which the weights were trained. If a
        step was interrupted, this is the state before that step.
        """
        if self._in_hand:
            return dict(self._in_hand[0].state_before)
        return self._training_feed.state_dict()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that yields numbers; `get_batch_samples` takes one batch of the feed for
        each number.
        """
        feed, args = self._training_feed, self.args
        # It skips numbers of this loader, and so ends epochs and evaluates where it would have.
        args.ignore_data_skip = False
        if args.max_steps > 0:
            count = args.max_steps * args.gradient_accumulation_steps
        elif isinstance(feed, TorchEpoch):
            count = len(feed)
        else:
            left = feed.batches_left
            # The steps of a checkpoint count from where the run began; the feed may be elsewhere.
            if left is not None and not (self._is_resumed and self._batches_of_run):
                self._batches_of_run = left
            count = feed.batches_per_epoch if left is None else self._batches_of_run
        if not count:
            problem = "is larger than what the feed has left, or an epoch of it; make it smaller"
            raise InvalidRequest("batch_size", problem)
        return DataLoader(range(count))  # type: ignore[arg-type]

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the batches of one step, and the number of their targets on all ranks together."""
        if epoch_iterator is not self._numbers:
            self._numbers, self._batches = epoch_iterator, self._training_feed.batches()
        wanted = len(list(islice(epoch_iterator, num_batches)))
        # Nothing runs between a batch that arrives and its place in the list: no Ctrl-C loses one.
        # A callback may have ended the epoch within a step: its batches come first.
        self._in_hand.extend(islice(self._batches, max(0, wanted - len(self._in_hand))))
        if not self._all_have(self._in_hand, wanted):
            message = (
                "training ends, for a rank has %d of %d batches of a step; sample=%d comes next"
            )
            sample = self.feed_state()["sample"]
            _LOG.warning(message, len(self._in_hand), wanted, sample)
            self.control.should_training_stop = True
            # As the Trainer does after max_steps.
            self.control.should_save = self.args.save_strategy == SaveStrategy.STEPS
            return [], None
        inputs = [batch.as_kwargs("transformers") for batch in self._in_hand]
        found: tuple[list[Any], Any] = super().get_batch_samples(iter(inputs), wanted, device)
        return found

    @property
    def _training_feed(self) -> RemoteBatches | TorchEpoch:
        if self._feed is None:
            raise InvalidRequest("train_dataset", "is missing; pass a feed")
        return self._feed

    def _all_have(self, batches: list[Any], wanted: int) -> bool:
        """Return whether each rank has as many batches as it wants; waits for all ranks.

        Raises: InvalidRequest on all ranks if the first rows are not others on each of them, and
        the same for the peers of one data-parallel rank.
        """
        is_whole = len(batches) == wanted
        if self.args.world_size == 1:
            return is_whole
        sample = int(batches[0].sample_numpy[0]) if batches else -1
        own = torch.tensor([is_whole, sample])
        found = [torch.empty_like(own) for _ in range(self.args.world_size)]
        dist.all_gather(found, own, group=self._host_group)
        if not all(bool(whole) for whole, _ in found):
            return False
        peers = self.get_tp_size()
        samples = [int(sample) for _, sample in found]
        # A rank may have no own row in a batch before a change of the context length.
        streams, without = len({*samples} - {-1}), samples.count(-1)
        if streams * peers + without != self.args.world_size:
            problem = (
                f"{self.args.world_size} processes read {streams} different rows at once, and "
                f"{self.args.world_size // peers} data-parallel ranks need rows of their own. "
                "Leave out rank= and world_size=, or with a device mesh pass group="
            )
            raise InvalidRequest("rank", problem)
        return True

    @cached_property
    def _host_group(self) -> Any:
        """A process group of all ranks in host memory, so that no GPU is waited for."""
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.args.ddp_timeout))

    # --- evaluation ---

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the model; the loss on a feed is the mean over the targets of all its rows on
        all ranks.
        eval_dataset: is what the constructor takes, and by default what the constructor got.
        Raises: InvalidRequest for a feed without an end, and for the training feed itself.
        """
        kept = self.eval_dataset
        if _feeds_of(eval_dataset):
            self.eval_dataset, eval_dataset = eval_dataset, None
        try:
            metrics: dict[str, float] = super().evaluate(eval_dataset, *args, **kwargs)
            return metrics
        finally:
            self.eval_dataset = kept

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the batches of a feed, under the argument names of the model; for another dataset
        return what the Trainer returns. eval_dataset: is what `evaluate` takes, or the name of one
        of several datasets.
        """
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        found = self.eval_dataset[found] if isinstance(found, str) else found
        if not _feeds_of(found):
            return super().get_eval_dataloader(eval_dataset)
        if isinstance(found, RemoteBatches):
            problem = "is a feed, which is read once; pass feed.epoch(0, tail='pad')"
            raise InvalidRequest("eval_dataset", problem)
        return _Evaluation(self, found)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on a loader.  Raises: as for `evaluate`."""
        if not isinstance(dataloader, _Evaluation):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        if self.compute_metrics is not None:
            raise InvalidRequest("compute_metrics", "gets no logits of a feed; omit it")
        before = None if self._feed is None else self.feed_state()["sample"]
        self._losses = [torch.zeros(2)]
        try:
            output = super().evaluation_loop(dataloader, *args, **kwargs)
            total = torch.stack([each.cpu().double() for each in self._losses]).sum(0)
        finally:
            self._losses = None
        if self._feed is not None and self.feed_state()["sample"] != before:
            problem = "is an epoch of the feed that is trained on, and has moved it; make another"
            raise InvalidRequest("eval_dataset", problem)
        if self.args.world_size > 1:
            dist.all_reduce(total, group=self._host_group)
        name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
        output.metrics[name] = (total[0] / total[1]).item()
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Add the loss of a batch, and its number of targets, to the sums of this evaluation."""
        if self._losses is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        count = (inputs["shift_labels"] != IGNORED_TARGET).sum().to(self.args.device)
        with torch.no_grad(), self.compute_loss_context_manager():
            mean = self.compute_loss(model, self._prepare_inputs(inputs))
        # The mean over no targets is not a number, as of rows that only fill up a batch.
        total = torch.where(count > 0, mean.float() * count, 0.0)
        self._losses.append(torch.stack([total, count.float()]))
        return None, None, None


class _Evaluation:
    """The batches of a feed, as dicts with a model's argument names; each rank has the same
    number.
    """

    def __init__(self, trainer: FeedTrainer, feed: TorchEpoch | WholeDataset) -> None:
        self._trainer, self._feed = trainer, feed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._feed.batches()
        while self._trainer._all_have(found := list(islice(batches, 1)), 1):
            yield found[0].as_kwargs("transformers")
        if found:
            _LOG.warning("evaluation ends: another rank has no batch left, and this one has")


def _position_callback(trainer: FeedTrainer, allow: Collection[str]) -> TrainerCallback:
    """Return a callback that puts the position of a feed into checkpoints, and loads it."""

    class FeedState(TrainerCallback, ExportableState):  # type: ignore[misc]
        # The Trainer may replace it by another instance, made without arguments.

        def state(self) -> dict[str, Any]:
            saved = None if trainer._feed is None else trainer.feed_state()
            return {"args": {}, "attributes": {}, "feed": saved}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step or trainer._in_hand:
                saved = state.stateful_callbacks.get("FeedState")
                if saved is None:
                    problem = "has no state of a feed; FeedTrainer did not write it"
                    raise InvalidRequest("resume_from_checkpoint", problem)
                trainer._training_feed.load_state_dict(saved["feed"], allow=allow)
            trainer._in_hand.clear()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.stateful_callbacks["FeedState"] = self.state()  # for trainer.save_state()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trainer._in_hand.clear()

    return FeedState()


def _feeds_of(dataset: Any) -> list[Any]:
    """Return the feeds in what may be one, or a dict of them."""
    several = list(dataset.values()) if isinstance(dataset, dict) else [dataset]
    return [each for each in several if isinstance(each, _FEEDS)]
