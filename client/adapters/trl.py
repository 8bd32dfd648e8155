"""The SFTTrainer of TRL on feeds of packed rows.

What it would do to a dataset was done by `tokenfeed ingest` and the feed: tokens, the chat
template, masks of prompts and of all but the assistant, packing. So it gets a stand-in to prepare.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from trl import SFTTrainer

from tokenfeed.errors import InvalidRequest

from .transformers import FeedTrainer

_DONE_BEFORE = {
    "assistant_only_loss": "the loss mask that `tokenfeed ingest --messages-column` writes",
    "completion_only_loss": "the loss mask that `tokenfeed ingest --response-column` writes",
    "packing": 'order="packed" of the feed',
    "padding_free": 'order="packed" of the feed',
}
"""Arguments of SFTConfig, and what has their place."""


class FeedSFTTrainer(FeedTrainer, SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer that trains and evaluates on feeds, as FeedTrainer does.

        trainer = FeedSFTTrainer(model, args, train_dataset=feed, processing_class=tokenizer)

    Where documents begin has to be known in all datasets of the feed. `max_length` and
    `dataset_num_proc` mean nothing, for nothing is prepared.
    """

    _stand_in = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})

    def __init__(self, model: Any, args: Any = None, **kwargs: Any) -> None:
        """Take the arguments of the SFTTrainer; datasets are as for FeedTrainer.

        Raises: InvalidRequest for arguments that prepare a dataset, naming what has their place;
        and as for FeedTrainer.
        """
        for name, instead in _DONE_BEFORE.items():
            given = getattr(args, name, None)
            # False would ask for what the mask has taken away.
            if given or (given is False and name == "completion_only_loss"):
                raise InvalidRequest(name, f"is not done again; omit it. A feed has {instead}")
        if kwargs.get("formatting_func") is not None:
            raise InvalidRequest("formatting_func", "formats no tokens; omit it")
        super().__init__(model, args, **kwargs)
