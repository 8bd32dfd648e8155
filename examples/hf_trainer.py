"""transformers' Trainer on a tiny new GPT-2. Run by hand, not by the tests.

    python examples/hf_trainer.py

FeedTrainer stores the state of the feed in each checkpoint, and resumes from it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from serving import parser, server_at

from tokenfeed import RemoteBatches

try:
    import accelerate  # noqa: F401  The Trainer requires it.
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from tokenfeed.client.adapters.transformers import FeedTrainer
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
        second = fit(options, address, folder, ALL_STEPS, str(checkpoint))
    print(f"trained on samples {first[0]} to {first[1]}, and stopped")
    print(f"resumed from {checkpoint.name}: samples {second[0]} to {second[1]}")
    samples = BATCH_SIZE * ACCUMULATE
    ends = (FIRST_STEPS * samples, ALL_STEPS * samples)
    return int((second[0], first[1], second[1]) != (SAVE_EVERY * samples, *ends))


def fit(
    options: Any, address: str, folder: str, steps: int, checkpoint: str | None
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
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    with RemoteBatches(
        address, BATCH_SIZE, CONTEXT_LENGTH, dataset=options.dataset, order="shuffled", seed=1337
    ) as feed:
        trainer = FeedTrainer(GPT2LMHeadModel(config), arguments, train_dataset=feed)
        trainer.train(resume_from_checkpoint=checkpoint)
        stats = feed.stats()
        print(stats)
        return stats.samples - stats.batches * BATCH_SIZE, stats.samples


if __name__ == "__main__":
    sys.exit(main())
