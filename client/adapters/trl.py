"""An adapter for the SFTTrainer of TRL, which trains on feeds of packed rows.

SFTTrainer usually prepares a dataset: it applies the chat template, tokenizes, masks what is not a
target, and packs. Here `tokenfeed ingest` and the feed have already done this, so SFTTrainer gets a
stand-in dataset to prepare.
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

    For each dataset of the feed, it must be known where documents begin
    (docs/documents-and-packing.md says how). `max_length` and `dataset_num_proc` are ignored, since
    no dataset is prepared. Arguments that prepare a dataset are refused, and the error names what
    to use instead.
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
