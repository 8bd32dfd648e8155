"""An adapter for litgpt's `pretrain`: a data module of feeds, whose position litgpt saves in its
own checkpoints. Fabric accepts only torch's DataLoader, and saves its state if the loader has a
`state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from litgpt.data import DataModule
from torch import Tensor
from torch.utils.data import DataLoader

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, TorchEpoch
from ..device.target_mask import IGNORED_TARGET


class FeedData(DataModule):  # type: ignore[misc]
    """A feed to train on and a feed to validate on.

        litgpt pretrain pythia-160m --data tokenfeed.client.adapters.litgpt.FeedData \\
            --data.target host:50051 --data.dataset web --data.validation web-val

    At the end of a training, litgpt reads one more batch and does not train on it. So the position
    in the checkpoint "final" is one batch too far: a run that resumes there skips this batch. Pass
    num_batches, the number of iterations of the whole run (`train.max_tokens` divided by the tokens
    of a batch of all ranks), and the feed itself ends there: then "final" is exact too. Checkpoints
    of save_interval are always exact.
    """

    def __init__(
        self,
        target: str,
        *,
        validation: str,
        dataset: str | None = None,
        order: str = "shuffled",
        seed: int = 0,
        num_batches: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Remember what to make; does no I/O.

        validation: names the dataset for validation; each validation reads its first windows, in
        the order of the corpus. options: are further arguments of the training feed, such as
        mixture. The other arguments mean what they do for RemoteBatches.
        """
        super().__init__()
        self._target, self._validation = target, validation
        own = {"dataset": dataset, "order": order, "seed": seed, "num_batches": num_batches}
        given: dict[str, Any] = {**own, **(options or {})}
        self._given = {name: value for name, value in given.items() if value is not None}
        self._shape = 1, 1

    def connect(
        self,
        tokenizer: object = None,
        batch_size: int = 1,
        max_seq_length: int | None = None,
        **_: object,
    ) -> None:
        """Remember the shape of a batch; litgpt calls this method.

        tokenizer: is not used.
        batch_size: is the number of rows of a rank.
        max_seq_length: is the context length.
        """
        if max_seq_length is None:
            raise InvalidRequest("max_seq_length", "is missing; it is the context length")
        self._shape = batch_size, max_seq_length

    def train_dataloader(self) -> FeedLoader:
        """Return the loader of the training feed; litgpt restores the loader's position."""
        feed = RemoteBatches(self._target, *self._shape, **self._given)
        return FeedLoader(feed, feed)

    def val_dataloader(self) -> FeedLoader:
        """Return a loader of all full batches of the validation set; each `for` over it starts at
        the first batch.
        """
        validation, order = self._validation, "sequential"
        feed = RemoteBatches(self._target, *self._shape, dataset=validation, order=order)
        return FeedLoader(feed, feed.epoch(0))


class FeedLoader(DataLoader[Any]):
    """A DataLoader that yields the rows of a feed, int64 [B, T + 1], and whose state is that of the
    feed.
    """

    def __init__(self, feed: RemoteBatches, batches: RemoteBatches | TorchEpoch) -> None:
        """batches: the feed itself, or an epoch of it."""
        super().__init__(batches, batch_size=None, collate_fn=_tokens)
        self.feed = feed
        self._left = feed.batches_left  # before a state is loaded: the LR schedule depends on it

    def __len__(self) -> int:
        """Return the number of batches of the whole feed, or of the epoch.

        Raises: InvalidRequest if it is endless.
        """
        return self.feed.batches_per_epoch if self._left is None else self._left

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the feed."""
        return self.feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state into the feed."""
        self.feed.load_state_dict(state)


def _tokens(batch: Sequence[Tensor]) -> Tensor:
    """Return the whole rows of a batch, whose targets litgpt takes from them."""
    x, y = batch
    if bool((y == IGNORED_TARGET).any()):
        raise InvalidRequest(
            "y",
            "is -100 at some targets, and litgpt trains on every token of a row: it has no mask. "
            'Choose order="shuffled", loss_mask="ignore", no mask_borders and no redactions',
        )
    return torch.cat([x, y[:, -1:]], 1)
