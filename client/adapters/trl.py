"""The SFTTrainer of TRL on feeds of packed rows.

What it would do to a dataset was done by `tokenfeed ingest` and the feed: tokens, the chat
template, masks of prompts and of all but the assistant, packing. So it gets a stand-in to prepare.
"""

from __future__ import annotations

from collections.abc import Mapping

from datasets import Dataset
from trl import SFTTrainer

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
    `dataset_num_proc` mean nothing, for nothing is prepared. Arguments that prepare a dataset are
    refused, and the error names what has their place.
    """

    _stand_in = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
    _refused: Mapping[str, str] = {
        **FeedTrainer._refused,
        "formatting_func": "formats no tokens; omit it",
        **{
            name: f"was done before; remove it. In its place is {instead}"
            for name, instead in _DONE_BEFORE.items()
        },
    }
