"""An adapter for nanochat: two functions that take the arguments of nanochat/dataloader.py, and
give the same form of batches and state.

nanochat reads one batch ahead, and saves the state that came with this batch. So each batch has to
come with the state of the feed before that batch. nanochat logs the keys `epoch`, `pq_idx` and
`rg_idx` of the state. The models of nanochat ignore targets that are -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches
from ..device.target_mask import IGNORED_TARGET

NANOCHAT_IGNORED = -1

StatefulBatches = Iterator[tuple[Tensor, Tensor, dict[str, Any]]]


class Loaders(NamedTuple):
    """The two loaders, to assign to the names that scripts/base_train.py imports:

        (
            tokenizing_distributed_data_loader_with_state_bos_bestfit,
            tokenizing_distributed_data_loader_bos_bestfit,
        ) = loaders(partial(RemoteBatches, "host:50051", dataset="web"), ...)

    with_state: yields inputs, targets, and the state before this batch.
    without_state: yields inputs and targets.  Both loaders take (tokenizer, B, T, split,
    device=..., resume_state_dict=...).
    """

    with_state: Callable[..., StatefulBatches]
    without_state: Callable[..., Iterator[tuple[Tensor, Tensor]]]


def loaders(
    train: Callable[..., RemoteBatches], validation: Callable[..., RemoteBatches]
) -> Loaders:
    """Return the loaders of two feeds.

    train, validation: are functions that make the feed of a split from batch_size=, context_length=
    and device=, such as partial(RemoteBatches, "host:50051", dataset="web", order="shuffled"). Each
    evaluation reads the validation feed from its beginning. Neither feed may have an end, since
    nanochat counts the steps itself.
    """

    def with_state(
        tokenizer: object,
        B: int,
        T: int,
        split: str,
        *_: object,
        device: torch.device | str = "cuda",
        resume_state_dict: dict[str, Any] | None = None,
        **__: object,
    ) -> StatefulBatches:
        make = {"train": train, "val": validation}[split]
        with make(batch_size=B, context_length=T, device=device) as feed:
            if resume_state_dict is not None:
                if "feed" not in resume_state_dict:
                    problem = "is of nanochat's own loader: begin a new run, or at a start_sample"
                    raise InvalidRequest("resume_state_dict", problem)
                feed.load_state_dict(resume_state_dict["feed"])
            while True:
                state, position = feed.state_dict(), feed.position
                batch = next(feed, None)
                if batch is None:
                    problem = "has ended before nanochat made its steps: leave out num_batches, and"
                    raise InvalidRequest("feed", f"{problem} max_epochs of a mixture")
                x, y = batch
                y.masked_fill_(y == IGNORED_TARGET, NANOCHAT_IGNORED)
                shown = {"epoch": position.epoch or 0, "pq_idx": 0, "rg_idx": position.samples}
                yield x, y, {**shown, "feed": state}

    def without_state(*given: Any, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, y) for x, y, _ in with_state(*given, **options))

    return Loaders(with_state, without_state)
