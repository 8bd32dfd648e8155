"""Trains a small GPT on two texts by a mixture whose weights change in the middle of the run.

    python examples/change_mixture.py --text FILE

FILE is a text of yours, of 10,000 characters or more. The other text is the documentation that
comes with every Python. 90 % of the samples come from your text first, and 10 % from the middle of
the run on. The loss is printed for each text by itself, on its last tenth, which is not trained on.

A token is a byte, and the run takes one or two minutes on one thread. `--tokenizer tokenizer.json`
makes other tokens. With the 50,257 of GPT-2 a step takes 13 times as long: pass `--steps 200` too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from gpt import GPT, make_optimizer
from serving import BYTE_VALUES, documentation, serving
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tokenfeed import RemoteBatches, validation_feeds

# Integers are samples in a block: in every 10 samples, 9 are of the text. A change begins at the
# end of a block, so at most 9 samples late.
FIRST = {"text": 9, "documentation": 1}
THEN = {"text": 1, "documentation": 9}
CONTEXT_LENGTH, BATCH_SIZE = 64, 16
VOCAB_SIZE_MAX = 1 << 16
WARMUP_STEPS = 20
CHARACTERS_MIN = 10_000
"""Then the last tenth has some windows of its own."""

Batches = Iterable[tuple[Tensor, Tensor]]


def main() -> int:
    """Train and evaluate.  Returns: 0."""
    arguments = parse_arguments()
    # In such a small model several threads are slower than one: see train_tinyshakespeare.py.
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    text = read_text(arguments.text)
    vocab_size, tokenizer = BYTE_VALUES, None
    if arguments.tokenizer is not None:
        tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
        vocab_size = tokenizer.get_vocab_size()
        if vocab_size > VOCAB_SIZE_MAX:
            raise SystemExit(
                f"error: {arguments.tokenizer} has more than {VOCAB_SIZE_MAX:,} tokens"
            )
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            path
            for name, content in (("text", text), ("documentation", documentation()))
            for path in write_tokens(Path(folder), name, content, tokenizer)
        ]
        with serving(*paths) as address:
            train(address, vocab_size, arguments)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="tokenizer.json; by default bytes"
    )
    parser.add_argument(
        "--steps", type=int, default=800, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--evaluate-every",
        type=int,
        default=100,
        metavar="STEPS",
        help="steps between evaluations (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def read_text(path: Path) -> str:
    """Return the content of a text file, or end the program."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SystemExit(f"error: {path} is not UTF-8 text: {error}") from None
    if len(text) < CHARACTERS_MIN:
        problem = f"has {len(text):,} characters, and {CHARACTERS_MIN:,} are needed"
        raise SystemExit(f"error: {path} {problem}")
    return text


def write_tokens(folder: Path, name: str, text: str, tokenizer: Tokenizer | None) -> list[Path]:
    """Write the first nine tenths of a text as NAME.bin, the rest as NAME-val.bin; return both."""
    cut = int(len(text) * 0.9)
    paths = [folder / f"{name}.bin", folder / f"{name}-val.bin"]
    for path, part in zip(paths, (text[:cut], text[cut:]), strict=True):
        tokens = list(part.encode()) if tokenizer is None else tokenizer.encode(part).ids
        np.array(tokens, dtype="<u2").tofile(path)
    return paths


def train(address: str, vocab_size: int, arguments: argparse.Namespace) -> None:
    """Train by both mixtures, half of the steps each, and print the losses on both texts."""
    steps, seed = arguments.steps, arguments.seed
    model = GPT(torch.zeros(vocab_size), CONTEXT_LENGTH)
    optimizer = make_optimizer(model)
    with (
        RemoteBatches(
            address, BATCH_SIZE, CONTEXT_LENGTH, mixture=FIRST, order="shuffled", seed=seed
        ) as feed,
        validation_feeds(
            address, BATCH_SIZE, CONTEXT_LENGTH, [f"{name}-val" for name in FIRST]
        ) as validation,
    ):
        print("loss on the last tenth of each text, in nats per token")
        print(f"{'step':>6}  {'samples':>8}" + "".join(f"  {name:>17}" for name in validation))
        for step in range(steps):
            if step % arguments.evaluate_every == 0 or step == steps // 2:
                print_losses(model, step, validation)
            if step == steps // 2:
                begin = feed.change_mixture(THEN)
                print(f"from sample {begin} on: {THEN}")
            x, y = next(feed)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * min(1, (step + 1) / WARMUP_STEPS)
            optimizer.zero_grad()
            cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print_losses(model, steps, validation)
        for name, stats in feed.stats().sources.items():
            print(f"{name}: {stats.samples} samples, {stats.epochs:.2f} epochs")


def print_losses(model: GPT, step: int, validation: Mapping[str, Batches]) -> None:
    """Print a line of the table: the loss on each text."""
    losses = (validation_loss(model, batches) for batches in validation.values())
    line = f"{step:>6}  {step * BATCH_SIZE:>8}" + "".join(f"  {loss:>17.3f}" for loss in losses)
    print(line, flush=True)


@torch.no_grad()
def validation_loss(model: GPT, batches: Batches) -> float:
    """Return the loss over all windows of a dataset, in nats per token."""
    model.eval()
    nats, tokens = 0.0, 0
    for x, y in batches:
        # Padding has y = -100, which cross_entropy leaves out.
        nats += float(cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum"))
        tokens += int((y != -100).sum())
    model.train()
    return nats / tokens


if __name__ == "__main__":
    sys.exit(main())
