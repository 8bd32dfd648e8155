"""Fine-tunes a tiny new Llama on chats that are made up: ingests, serves and packs them, trains on
what the assistant says, and evaluates one chat a row.

    python examples/sft.py
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from serving import serving

from tokenfeed import RemoteBatches

try:
    import accelerate  # noqa: F401  The Trainer requires it.
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    from tokenfeed.client.adapters.transformers import FeedTrainer
except ModuleNotFoundError:
    sys.exit("this example needs transformers: pip install transformers accelerate")

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
VOCABULARY = 257  # of the tokenizer "bytes", as ingest prints


def main() -> int:
    """Make, ingest, serve, train.  Returns: 0, or 1 if the model has not learned the answers."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ingest(folder)
        with serving(folder / "corpus" / "train", folder / "corpus" / "val") as address:
            before, after = fine_tune(address, folder)
    print(f"loss on chats that were not trained on: {before:.3f} before, {after:.3f} after")
    return int(after > before / 4)


def ingest(folder: Path) -> None:
    """Write chats and a template, and make a corpus with a loss mask of them."""
    choose = random.Random(1)
    with (folder / "chats.jsonl").open("w") as file:
        for _ in range(500):
            word = choose.choice(["yes", "no", "maybe", "never"])
            name = "".join(choose.choices("abcdefgh", k=4))
            turns = [("user", f"Say {word} to {name}."), ("assistant", f"{word}, {word}!")]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    (folder / "chatml.jinja").write_text(CHATML)
    options = "--tokenizer bytes --messages-column messages --chat-template chatml.jinja"
    command = [sys.executable, "-m", "tokenfeed", "ingest", "chats.jsonl", "--out", "corpus"]
    command += [*options.split(), "--val-fraction", "0.1"]
    subprocess.run(command, cwd=folder, check=True)


def fine_tune(address: str, folder: Path) -> tuple[float, float]:
    """Train for three epochs.  Returns: the loss on other chats before and after."""
    feed = RemoteBatches(address, 8, 192, dataset="train", order="packed", seed=1)
    others = RemoteBatches(address, 8, 192, dataset="val", order="padded")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=192,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    args = TrainingArguments(
        str(folder / "run"), num_train_epochs=3, learning_rate=1e-2, lr_scheduler_type="cosine",
        logging_steps=10, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = FeedTrainer(model, args, train_dataset=feed, eval_dataset=others.epoch(0, tail="pad"))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return before, trainer.evaluate()["eval_loss"]


if __name__ == "__main__":
    sys.exit(main())
