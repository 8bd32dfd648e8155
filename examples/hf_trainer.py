"""transformers' Trainer on a tiny new GPT-2. Run by hand, not by the tests.

    python examples/hf_trainer.py

The feed's state is stored in each checkpoint. `ignore_data_skip=True`: the Trainer need not read
and discard the batches that were trained on before, since the feed resumes after them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from serving import parser, server_at
from torch.utils.data import DataLoader, IterableDataset

from tokenfeed import RemoteBatches

try:
    import accelerate  # noqa: F401  The Trainer requires it.
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )
except ModuleNotFoundError:
    sys.exit("this example needs transformers: pip install transformers accelerate")

BATCH_SIZE, CONTEXT_LENGTH, ACCUMULATE = 8, 64, 2
SAVE_EVERY, FIRST_STEPS, ALL_STEPS = 10, 15, 20


def main() -> int:
    """Train, stop after a checkpoint, resume from it.  Returns: 0, or 1 for wrong samples."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    with server_at(options.target) as address, tempfile.TemporaryDirectory() as folder:
        first = fit(options, address, folder, FIRST_STEPS, None)
        checkpoint = Path(folder) / f"checkpoint-{SAVE_EVERY}"
        second = fit(options, address, folder, ALL_STEPS, checkpoint)
    print(f"trained on samples {first[0]} to {first[1]}, and stopped")
    print(f"resumed from {checkpoint.name}: samples {second[0]} to {second[1]}")
    samples = BATCH_SIZE * ACCUMULATE
    ends = (FIRST_STEPS * samples, ALL_STEPS * samples)
    return int((second[0], first[1], second[1]) != (SAVE_EVERY * samples, *ends))


def fit(
    options: Any, address: str, folder: str, steps: int, checkpoint: Path | None
) -> tuple[int, int]:
    """Train up to a step.  Returns: the first sample trained on, and the next one."""
    config = GPT2Config(
        vocab_size=options.vocab_size,
        n_positions=CONTEXT_LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        gradient_accumulation_steps=ACCUMULATE,
        save_steps=SAVE_EVERY,
        logging_steps=5,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        ignore_data_skip=True,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    with RemoteBatches(
        address, BATCH_SIZE, CONTEXT_LENGTH, dataset=options.dataset, order="shuffled", seed=1337
    ) as feed:
        if checkpoint is not None:
            feed.load_state_dict(json.loads((checkpoint / "feed.json").read_text()))
        first_sample = feed.position.samples
        trainer = FeedTrainer(
            GPT2LMHeadModel(config), arguments, train_dataset=Rows(feed), callbacks=[SaveFeed(feed)]
        )
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        print(feed.stats())
        return first_sample, feed.position.samples


class Rows(IterableDataset):
    """Batches of a feed under the argument names of the model."""

    def __init__(self, feed: RemoteBatches) -> None:
        """Wrap a feed."""
        self.feed = feed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what the model takes. labels alone would be shifted by one more token."""
        for batch in self.feed.batches():
            yield batch.as_kwargs("transformers")


class FeedTrainer(Trainer):
    """A Trainer that uses the feed's batches unchanged."""

    def get_train_dataloader(self) -> DataLoader:
        """Return the feed's batches. The Trainer's own loader would batch the batches, and give
        each rank only every n-th batch of its own.
        """
        return DataLoader(self.train_dataset, batch_size=None)


class SaveFeed(TrainerCallback):
    """Stores the feed's state in every checkpoint.

    The Trainer takes the batches of one optimizer step at a time. So after a step, the feed's state
    is exact.
    """

    def __init__(self, feed: RemoteBatches) -> None:
        """Remember the feed."""
        self.feed = feed

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write feed.json, on one rank."""
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (checkpoint / "feed.json").write_text(json.dumps(self.feed.state_dict()))


if __name__ == "__main__":
    sys.exit(main())
